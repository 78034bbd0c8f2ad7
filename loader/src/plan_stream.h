// One virtual worker: which rows may be decoded with which plan, and which are settled.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "headrace/image.h"
#include "headrace/random.h"
#include "headrace/transform.h"

namespace headrace {

/// The state machine behind "same random draws as a torch worker, but in parallel".
///
/// A torch worker handles its batches one after another and each sample whole, with one random
/// stream. Draws depend on the data only through the image's size and through failure: a sample
/// that raises ends its batch, so that the next batch begins earlier in the stream. PlanStream
/// therefore plans rows in stream order as soon as their sizes are known, on the assumption that
/// everything before them succeeds, and takes plans back when that turns out wrong.
///
/// Two cursors run over the rows in stream order. The *plan* cursor stands at the first row that
/// has no plan; it stops at a row whose size is not known yet and at a doubtful one. The *settle*
/// cursor stands at the first row whose outcome could still change. Only there may the oracle be
/// asked about a doubtful row, since only there the random stream before it is certain.
///
/// Where the collate function draws too, it does so after a batch's last row: the plan cursor then
/// also stops at the end of each batch until collated() says where the stream goes on. Such draws
/// depend on nothing but the stream, so they need not wait until the rows are settled.
///
/// With streams of the rows' own (see RowStart) there is no such order: a row is planned when it
/// arrives, and no answer and no failure touches the plan of another.
///
/// Events come in by calls; what must be done comes out of take_actions(). No threads, no clock, no
/// I/O: the engine's lock guards it and carries the actions out.
class PlanStream {
 public:
  using Planner = std::function<Plan(ImageSize, RandomStream&)>;
  /// A row's own random stream, the same whenever it is asked for.
  using RowStart = std::function<RandomStream(std::uint64_t batch, std::size_t row)>;

  struct Action {
    enum class Kind {
      kDecode,   ///< decode the row's bytes with plan(); then call decoded()
      kRead,     ///< the row's bytes are gone and needed again; then call arrived() or doubtful()
      kRelease,  ///< the row's bytes are not needed any more
    };
    Kind kind;
    std::uint64_t batch;
    std::size_t row;
    bool operator==(const Action&) const = default;
  };

  /// A row that the oracle must compute: torch and Pillow themselves, from `random` on.
  struct Question {
    std::uint64_t batch;
    std::size_t row;
    std::string reason;
    RandomStream random;
  };

  /// A batch whose rows are all planned: where does its collate function leave the stream?
  struct CollateQuestion {
    std::uint64_t batch;
    std::size_t rows;
    RandomStream random;
  };

  /// The oracle's answer.
  enum class Answer {
    kComputed,  ///< its result is in place
    kSkipped,   ///< there is none, and the batch goes on without the row
    kFailed,    ///< there is none, and the batch ends with that
  };

  /// What became of a settled batch.
  struct Outcome {
    std::optional<std::size_t> failed_row;  ///< the row that raised, if one did
    std::vector<std::size_t> skipped_rows;  ///< ascending
    RandomStream random_after;              ///< where the batch left the stream
    /// Where its collate function draws from, if it does.
    std::optional<RandomStream> random_before_collate;
  };

  PlanStream(RandomStream random, Planner planner, bool collate_draws = false);
  /// The rows have streams of their own. Outcome::random_after then says nothing.
  PlanStream(RowStart row_start, Planner planner);

  /// Appends a batch whose rows are being read. `id`s must rise.
  void add_batch(std::uint64_t id, std::size_t rows);
  /// Appends a batch of one row that only the oracle can compute, as a whole.
  void add_opaque_batch(std::uint64_t id, std::string reason);

  /// The row's bytes are here and seem intact.
  void arrived(std::uint64_t batch, std::size_t row, ImageSize size);
  /// The row's bytes could not be had, or only Pillow may judge them.
  void doubtful(std::uint64_t batch, std::size_t row, std::string reason);
  /// The decode that kDecode asked for has ended: well, or with a doubt.
  void decoded(std::uint64_t batch, std::size_t row, std::optional<std::string> doubt);
  /// The oracle has answered, and left the stream at `random_after`. The row must be the one of
  /// question().
  void answered(std::uint64_t batch, std::size_t row, Answer answer,
                const RandomStream& random_after);

  /// The answer to collate_question().
  void collated(std::uint64_t batch, const RandomStream& random_after);

  /// Puts the stream to `random` before the oldest batch. When that is not where it was, every plan
  /// is made again.
  void rewind(const RandomStream& random);

  /// The plan that kDecode asked to use; stays valid until decoded().
  const Plan& plan(std::uint64_t batch, std::size_t row) const;
  /// Whether the row's bytes, when they arrive, are still of use.
  bool wanted(std::uint64_t batch, std::size_t row) const;

  std::vector<Action> take_actions();
  /// Whether question() or collate_question() has one; cheap.
  bool asks() const { return asks_row() || asks_collate(); }
  std::optional<Question> question() const;
  std::optional<CollateQuestion> collate_question() const;

  /// Every row has its final outcome and no decode writes into the batch any more.
  bool settled(std::uint64_t batch) const;
  /// Forgets the oldest batch, which must be settled.
  Outcome pop();

  bool empty() const noexcept { return batches_.empty(); }
  /// Times that plans were taken back.
  std::uint64_t rollbacks() const noexcept { return rollbacks_; }

 private:
  enum class RowState {
    kReading,   // bytes asked for
    kArrived,   // bytes here, size known, no plan
    kDecoding,  // a decode with the row's plan is queued or running
    kDone,      // pixels in place
    kDoubtful,  // waits for the oracle
    kAnswered,  // the oracle's pixels in place
    kSkipped,   // the oracle left it out
    kFailed,    // the oracle raised; ends the batch
    kDropped,   // after a failed row: torch would not have looked at it
  };

  // A place in the stream: far cheaper to keep for every row than the state itself.
  struct Position {
    std::shared_ptr<const RandomStream> base;
    std::uint64_t words = 0;
    RandomStream stream() const;
  };

  struct Row {
    RowState state = RowState::kReading;
    bool read_pending = true;     // an arrived() or doubtful() is still to come
    bool decode_pending = false;  // a decoded() is still to come
    bool stale = false;           // the pending decode uses a plan that was taken back
    bool planned = false;         // `before`, `after` and `plan` hold
    ImageSize size;
    Plan plan;
    Position before;
    Position after;
    std::string doubt;
  };

  struct Batch {
    std::uint64_t id = 0;
    std::vector<Row> rows;
    std::size_t decodes_pending = 0;
    std::optional<std::size_t> failed_row;
    bool collate_draws = false;
    std::optional<Position> before_collate;  // set when the question was answered
    Position start;
    Position end;
  };

  // Indices into batches_ and rows; row may be one past the last.
  struct Cursor {
    std::size_t batch = 0;
    std::size_t row = 0;
  };

  bool asks_row() const;
  bool asks_collate() const;
  static bool awaits_collate(const Batch& batch) {
    return batch.collate_draws && !batch.before_collate;
  }
  const Batch& find(std::uint64_t id) const;
  Batch& find(std::uint64_t id);
  Position position() const;
  void restart_from(const RandomStream& random);
  RandomStream before(const Batch& batch, std::size_t row) const;
  bool plan_row(Batch& batch, std::size_t row);
  void take_back(Batch& batch, std::size_t first_row);
  void take_back_row(Batch& batch, std::size_t row);
  void drop_rows(Batch& batch, std::size_t first_row);
  void read_again(Batch& batch, std::size_t row);
  void advance();

  RowStart row_start_;   // empty: the rows share random_
  RandomStream random_;  // at the plan cursor
  std::shared_ptr<const RandomStream> base_;
  Planner planner_;
  bool collate_draws_;
  std::deque<Batch> batches_;  // oldest first
  Cursor plan_cursor_;
  Cursor settle_cursor_;
  std::vector<Action> actions_;
  std::uint64_t rollbacks_ = 0;
};

}  // namespace headrace
