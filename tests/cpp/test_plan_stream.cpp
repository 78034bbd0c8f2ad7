#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "plan_stream.h"
#include "support.h"

namespace headrace {
namespace {

using Kind = PlanStream::Action::Kind;
using Answer = PlanStream::Answer;
using RowId = std::pair<std::uint64_t, std::size_t>;

// Draws as many words as the image is wide; the first of them stands for the plan.
Plan draw(ImageSize size, RandomStream& random) {
  Plan plan;
  plan.steps.resize(1);
  for (int i = 0; i < size.width; ++i) {
    const auto word = static_cast<int>(random.next_word() & 0x7fffffff);
    if (i == 0) plan.steps[0].left = word;
  }
  if (size.height == 2) plan.doubt = "too close to call";
  return plan;
}

int first_draw(RandomStream random) { return static_cast<int>(random.next_word() & 0x7fffffff); }

std::vector<PlanStream::Action> actions_of(PlanStream& stream, Kind kind) {
  auto all = stream.take_actions();
  std::erase_if(all, [&](const auto& action) { return action.kind != kind; });
  return all;
}

TEST_CASE("rows are planned in stream order, in whatever order their bytes arrive",
          "[plan_stream]") {
  PlanStream stream(RandomStream(1), draw);
  stream.add_batch(0, 2);
  stream.add_batch(3, 1);
  stream.arrived(3, 0, {1, 1});
  stream.arrived(0, 1, {1, 1});
  REQUIRE(stream.take_actions().empty());
  stream.arrived(0, 0, {4, 1});
  REQUIRE(stream.take_actions() == std::vector<PlanStream::Action>{{Kind::kDecode, 0, 0},
                                                                   {Kind::kDecode, 0, 1},
                                                                   {Kind::kDecode, 3, 0}});
  RandomStream expected(1);
  CHECK(stream.plan(0, 0).steps[0].left == first_draw(expected));
  expected.skip(4);
  CHECK(stream.plan(0, 1).steps[0].left == first_draw(expected));
  expected.skip(1);
  CHECK(stream.plan(3, 0).steps[0].left == first_draw(expected));
}

TEST_CASE("a doubtful row is asked about only when all rows before it are settled",
          "[plan_stream]") {
  PlanStream stream(RandomStream(1), draw);
  stream.add_batch(0, 2);
  stream.arrived(0, 0, {3, 1});
  stream.doubtful(0, 1, "no JPEG");
  REQUIRE_FALSE(stream.question().has_value());
  stream.decoded(0, 0, std::nullopt);
  const auto question = stream.question();
  REQUIRE(question.has_value());
  CHECK(question->row == 1);
  CHECK(question->reason == "no JPEG");
  RandomStream expected(1);
  expected.skip(3);
  CHECK(question->random.same_position(expected));
}

TEST_CASE("an answer with the draws that were planned keeps later plans", "[plan_stream]") {
  PlanStream stream(RandomStream(1), draw);
  stream.add_batch(0, 2);
  stream.arrived(0, 0, {3, 1});
  stream.arrived(0, 1, {3, 1});
  stream.decoded(0, 0, "a warning");
  stream.take_actions();
  RandomStream after(1);
  after.skip(3);
  stream.answered(0, 0, Answer::kComputed, after);
  CHECK(stream.take_actions().empty());
  CHECK(stream.rollbacks() == 0);
  stream.decoded(0, 1, std::nullopt);
  CHECK(stream.settled(0));
}

TEST_CASE("a failed row ends its batch, and the next batch begins earlier in the stream",
          "[plan_stream]") {
  PlanStream stream(RandomStream(1), draw);
  stream.add_batch(0, 3);
  stream.add_batch(1, 1);
  for (std::size_t row = 0; row < 3; ++row) stream.arrived(0, row, {2, 1});
  stream.arrived(1, 0, {2, 1});
  stream.take_actions();
  stream.decoded(0, 0, std::nullopt);
  stream.decoded(1, 0, std::nullopt);  // with a plan that will prove wrong
  stream.decoded(0, 1, "damaged");
  RandomStream after(1);
  after.skip(2);
  stream.answered(0, 1, Answer::kFailed, after);

  CHECK_FALSE(stream.settled(0));  // row 2 is still being written
  stream.decoded(0, 2, std::nullopt);
  REQUIRE(stream.settled(0));
  const auto outcome = stream.pop();
  CHECK(outcome.failed_row == std::size_t{1});
  CHECK(outcome.random_after.same_position(after));

  CHECK_FALSE(stream.settled(1));
  REQUIRE(actions_of(stream, Kind::kRead) == std::vector<PlanStream::Action>{{Kind::kRead, 1, 0}});
  stream.arrived(1, 0, {2, 1});
  CHECK(stream.plan(1, 0).steps[0].left == first_draw(after));
  stream.decoded(1, 0, std::nullopt);
  CHECK(stream.settled(1));
  CHECK(stream.rollbacks() == 1);
}

TEST_CASE("a plan in doubt gives the bytes back and leaves the stream where it was",
          "[plan_stream]") {
  PlanStream stream(RandomStream(1), draw);
  stream.add_batch(0, 1);
  stream.arrived(0, 0, {5, 2});
  CHECK(stream.take_actions() == std::vector<PlanStream::Action>{{Kind::kRelease, 0, 0}});
  REQUIRE(stream.question().has_value());
  CHECK(stream.question()->random.same_position(RandomStream(1)));
  CHECK(stream.question()->reason == "too close to call");
}

TEST_CASE("an opaque batch takes its turn in the stream", "[plan_stream]") {
  PlanStream stream(RandomStream(1), draw);
  stream.add_batch(0, 1);
  stream.add_opaque_batch(1, "odd indices");
  stream.add_batch(2, 1);
  stream.arrived(2, 0, {1, 1});
  stream.arrived(0, 0, {2, 1});
  stream.decoded(0, 0, std::nullopt);
  REQUIRE(stream.question().has_value());
  CHECK(stream.question()->batch == 1);
  RandomStream after = stream.question()->random;
  after.skip(7);
  stream.answered(1, 0, Answer::kComputed, after);
  CHECK(stream.plan(2, 0).steps[0].left == first_draw(after));
}

TEST_CASE("rewinding to where the stream stands changes nothing", "[plan_stream]") {
  PlanStream stream(RandomStream(1), draw);
  stream.add_batch(0, 1);
  stream.arrived(0, 0, {2, 1});
  stream.decoded(0, 0, std::nullopt);
  stream.take_actions();
  stream.rewind(RandomStream(1));
  CHECK(stream.settled(0));
  CHECK(stream.take_actions().empty());
}

TEST_CASE("rewinding elsewhere plans every batch in flight again", "[plan_stream]") {
  PlanStream stream(RandomStream(1), draw);
  stream.add_batch(0, 2);
  stream.arrived(0, 0, {2, 1});
  stream.arrived(0, 1, {2, 1});
  stream.decoded(0, 0, std::nullopt);
  stream.take_actions();
  stream.rewind(RandomStream(2));
  CHECK_FALSE(stream.settled(0));
  CHECK(stream.take_actions() == std::vector<PlanStream::Action>{{Kind::kRead, 0, 0}});
  stream.decoded(0, 1, std::nullopt);  // the old plan's pixels do not count
  CHECK(stream.take_actions() == std::vector<PlanStream::Action>{{Kind::kRead, 0, 1}});
  stream.arrived(0, 0, {2, 1});
  stream.arrived(0, 1, {2, 1});
  CHECK(stream.plan(0, 0).steps[0].left == first_draw(RandomStream(2)));
}

TEST_CASE("rewinding there and back gives the first plans again", "[plan_stream]") {
  PlanStream stream(RandomStream(1), draw);
  stream.add_batch(0, 1);
  stream.arrived(0, 0, {2, 1});
  const int first = stream.plan(0, 0).steps[0].left;
  for (const unsigned seed : {2U, 1U}) {
    stream.rewind(RandomStream(seed));
    stream.decoded(0, 0, std::nullopt);
    stream.arrived(0, 0, {2, 1});
    CHECK(stream.plan(0, 0).steps[0].left == first_draw(RandomStream(seed)));
  }
  CHECK(stream.plan(0, 0).steps[0].left == first);
}

TEST_CASE("a batch that failed before a rewind may succeed after it", "[plan_stream]") {
  PlanStream stream(RandomStream(1), draw);
  stream.add_batch(0, 2);
  stream.doubtful(0, 0, "odd");
  stream.arrived(0, 1, {2, 1});
  stream.answered(0, 0, Answer::kFailed, RandomStream(1));
  REQUIRE(stream.settled(0));

  stream.rewind(RandomStream(2));
  CHECK_FALSE(stream.settled(0));
  REQUIRE(stream.question().has_value());
  stream.answered(0, 0, Answer::kComputed, RandomStream(2));
  CHECK(actions_of(stream, Kind::kRead) == std::vector<PlanStream::Action>{{Kind::kRead, 0, 1}});
  stream.arrived(0, 1, {2, 1});
  stream.decoded(0, 1, std::nullopt);
  REQUIRE(stream.settled(0));
  CHECK_FALSE(stream.pop().failed_row.has_value());
}

TEST_CASE("pixels of a plan from before a failure and a rewind do not count", "[plan_stream]") {
  PlanStream stream(RandomStream(1), draw);
  stream.add_batch(0, 2);
  stream.arrived(0, 0, {2, 1});
  stream.arrived(0, 1, {2, 1});
  stream.decoded(0, 0, "damaged");
  stream.answered(0, 0, Answer::kFailed,
                  RandomStream(1));  // row 1 is dropped while it is being decoded
  stream.rewind(RandomStream(2));
  RandomStream after(2);
  after.skip(2);
  stream.answered(0, 0, Answer::kComputed, after);
  stream.take_actions();
  stream.decoded(0, 1, std::nullopt);
  CHECK(stream.take_actions() == std::vector<PlanStream::Action>{{Kind::kRead, 0, 1}});
  stream.arrived(0, 1, {2, 1});
  CHECK(stream.plan(0, 1).steps[0].left == first_draw(after));
}

RandomStream own_stream(std::uint64_t batch, std::size_t row) {
  return RandomStream(SampleKey{.seed = 5, .epoch = 2, .index = 100 * batch + row});
}

TEST_CASE("a skipped row leaves its draws made, and the rows behind it go on from there",
          "[plan_stream]") {
  PlanStream stream(RandomStream(1), draw);
  stream.add_batch(0, 2);
  stream.doubtful(0, 0, "no JPEG");
  stream.arrived(0, 1, {1, 1});
  RandomStream after(1);
  after.skip(3);
  stream.answered(0, 0, Answer::kSkipped, after);
  REQUIRE(actions_of(stream, Kind::kDecode).size() == 1);
  CHECK(stream.plan(0, 1).steps[0].left == first_draw(after));
  stream.decoded(0, 1, std::nullopt);
  REQUIRE(stream.settled(0));
  const auto outcome = stream.pop();
  CHECK(outcome.skipped_rows == std::vector<std::size_t>{0});
  CHECK_FALSE(outcome.failed_row.has_value());
}

TEST_CASE("rows with streams of their own wait for nobody", "[plan_stream]") {
  PlanStream stream(own_stream, draw);
  stream.add_batch(0, 2);
  stream.add_batch(1, 1);
  stream.doubtful(0, 0, "no JPEG");
  stream.arrived(1, 0, {3, 1});
  stream.arrived(0, 1, {1, 1});
  REQUIRE(actions_of(stream, Kind::kDecode).size() == 2);
  CHECK(stream.plan(1, 0).steps[0].left == first_draw(own_stream(1, 0)));
  CHECK(stream.plan(0, 1).steps[0].left == first_draw(own_stream(0, 1)));
}

// What torch's worker would do with the same samples, one after another.
struct Truth {
  bool doubtful_header;  // found at arrival
  bool doubtful_decode;  // found by decoding
  bool fails;            // the oracle raises
  bool skipped;          // and the batch goes on without the row
  int width;             // words that a plan draws
  int height;            // 2: the plan is in doubt
  int oracle_words;      // words that the oracle draws
  bool asked() const { return doubtful_header || doubtful_decode || height == 2; }
};

struct Expected {
  std::vector<std::optional<int>> first_draws;  // per row; nothing for rows the oracle computes
  std::optional<std::size_t> failed_row;
  std::vector<std::size_t> skipped_rows;
  RandomStream after;
};

// Nothing: the rows have streams of their own.
using Start = std::optional<RandomStream>;

Expected one_after_another(std::uint64_t id, const std::vector<Truth>& rows, const Start& start) {
  RandomStream random = start.value_or(RandomStream(0));
  Expected expected{{}, std::nullopt, {}, random};
  for (std::size_t row = 0; row < rows.size(); ++row) {
    const Truth& truth = rows[row];
    if (!start) random = own_stream(id, row);
    if (truth.asked()) {
      random.skip(static_cast<std::uint64_t>(truth.oracle_words));
      expected.first_draws.push_back(std::nullopt);
      if (truth.fails && truth.skipped) {
        expected.skipped_rows.push_back(row);
      } else if (truth.fails) {
        expected.failed_row = row;
        break;
      }
    } else {
      expected.first_draws.push_back(first_draw(random));
      random.skip(static_cast<std::uint64_t>(truth.width));
    }
  }
  expected.after = random;
  return expected;
}

// Drives a PlanStream with events in random order and checks it against one_after_another().
class Simulation {
 public:
  /// @param own_streams  the rows have streams of their own.
  Simulation(unsigned seed, bool own_streams)
      : rng_(seed),
        start_(own_streams ? Start() : RandomStream(seed)),
        collate_draws_(!own_streams && seed % 2 == 1),
        stream_(own_streams ? PlanStream(own_stream, draw)
                            : PlanStream(*start_, draw, collate_draws_)) {}

  void run() {
    for (int batch = 0; batch < 12 || !truths_.empty();) {
      const unsigned choice = below(10);
      if (choice == 0 && batch < 12 && truths_.size() < 4) {
        add(static_cast<std::uint64_t>(3 * batch++));
      } else if (choice == 1 && below(8) == 0) {
        const RandomStream elsewhere(rng_());
        if (start_) start_ = elsewhere;
        stream_.rewind(elsewhere);
      } else if (choice < 5 && !reads_.empty()) {
        finish_read(*std::next(reads_.begin(), below(static_cast<unsigned>(reads_.size()))));
      } else if (choice < 8 && !decodes_.empty()) {
        finish_decode(*std::next(decodes_.begin(), below(static_cast<unsigned>(decodes_.size()))));
      } else if (stream_.collate_question() && (below(2) == 0 || !stream_.question())) {
        answer(*stream_.collate_question());
      } else if (stream_.question()) {
        answer(*stream_.question());
      } else if (!truths_.empty() && stream_.settled(truths_.begin()->first)) {
        check_oldest();
      }
      carry_out();
    }
  }

 private:
  unsigned below(unsigned n) { return static_cast<unsigned>(rng_() % n); }

  void add(std::uint64_t id) {
    std::vector<Truth> rows(below(5));
    for (auto& row : rows) {
      row = {.doubtful_header = below(8) == 0,
             .doubtful_decode = below(8) == 0,
             .fails = below(2) == 0,
             .skipped = below(2) == 0,
             .width = 1 + static_cast<int>(below(4)),
             .height = below(12) == 0 ? 2 : 1,
             .oracle_words = static_cast<int>(below(3))};
      if (row.doubtful_decode && below(2) == 0) row.oracle_words = row.width;
    }
    for (std::size_t row = 0; row < rows.size(); ++row) reads_.insert({id, row});
    stream_.add_batch(id, rows.size());
    truths_[id] = rows;
    collate_words_[id] = below(3);
  }

  void finish_read(RowId row) {
    reads_.erase(row);
    if (!truths_.contains(row.first)) return;  // dropped, and its batch is gone
    const Truth& truth = truths_[row.first][row.second];
    if (truth.doubtful_header) {
      stream_.doubtful(row.first, row.second, "header");
      return;
    }
    if (stream_.wanted(row.first, row.second)) bytes_.insert(row);
    stream_.arrived(row.first, row.second, {truth.width, truth.height});
  }

  void finish_decode(std::pair<const RowId, int> decode) {
    const auto [row, plan] = decode;
    decodes_.erase(row);
    bytes_.erase(row);
    pixels_[row] = plan;
    std::optional<std::string> doubt;
    if (truths_[row.first][row.second].doubtful_decode) doubt = "decode";
    stream_.decoded(row.first, row.second, doubt);
  }

  void answer(const PlanStream::Question& question) {
    const Truth& truth = truths_[question.batch][question.row];
    REQUIRE(truth.asked());
    REQUIRE_FALSE(decodes_.contains({question.batch, question.row}));
    RandomStream after = question.random;
    after.skip(static_cast<std::uint64_t>(truth.oracle_words));
    const Answer verdict = !truth.fails    ? Answer::kComputed
                           : truth.skipped ? Answer::kSkipped
                                           : Answer::kFailed;
    stream_.answered(question.batch, question.row, verdict, after);
  }

  void answer(const PlanStream::CollateQuestion& question) {
    REQUIRE(collate_draws_);
    REQUIRE(question.rows == truths_[question.batch].size());
    RandomStream after = question.random;
    after.skip(collate_words_[question.batch]);
    stream_.collated(question.batch, after);
  }

  void carry_out() {
    for (const auto& action : stream_.take_actions()) {
      const RowId row{action.batch, action.row};
      switch (action.kind) {
        case Kind::kDecode:
          REQUIRE(bytes_.contains(row));
          REQUIRE_FALSE(decodes_.contains(row));  // one writer a row
          decodes_[row] = stream_.plan(action.batch, action.row).steps[0].left;
          break;
        case Kind::kRead:
          REQUIRE_FALSE(reads_.contains(row));
          REQUIRE_FALSE(bytes_.contains(row));
          reads_.insert(row);
          break;
        case Kind::kRelease:
          REQUIRE(bytes_.erase(row) == 1);
          break;
      }
    }
  }

  void check_oldest() {
    const auto [id, rows] = *truths_.begin();
    Expected expected = one_after_another(id, rows, start_);
    const auto outcome = stream_.pop();
    CHECK(outcome.failed_row == expected.failed_row);
    CHECK(outcome.skipped_rows == expected.skipped_rows);
    REQUIRE(outcome.random_before_collate.has_value() == (collate_draws_ && !expected.failed_row));
    if (outcome.random_before_collate) {
      CHECK(outcome.random_before_collate->same_position(expected.after));
      expected.after.skip(collate_words_[id]);
    }
    if (start_) CHECK(outcome.random_after.same_position(expected.after));
    for (std::size_t row = 0; row < expected.first_draws.size(); ++row) {
      if (expected.first_draws[row]) CHECK(pixels_[{id, row}] == *expected.first_draws[row]);
    }
    for (std::size_t row = 0; row < rows.size(); ++row) {
      CHECK_FALSE(decodes_.contains({id, row}));
      CHECK_FALSE(bytes_.contains({id, row}));
    }
    if (start_) start_ = expected.after;
    truths_.erase(id);
  }

  std::mt19937 rng_;
  Start start_;  // before the oldest batch
  bool collate_draws_;
  PlanStream stream_;
  std::map<std::uint64_t, std::vector<Truth>> truths_;
  std::map<std::uint64_t, std::uint64_t> collate_words_;
  std::set<RowId> reads_;
  std::map<RowId, int> decodes_;
  std::set<RowId> bytes_;
  std::map<RowId, int> pixels_;
};

TEST_CASE("a batch's collate function draws after its rows, before they are decoded",
          "[plan_stream]") {
  PlanStream stream(RandomStream(1), draw, /*collate_draws=*/true);
  stream.add_batch(0, 1);
  stream.add_batch(1, 1);
  CHECK_FALSE(stream.asks());
  stream.arrived(1, 0, {1, 1});
  stream.arrived(0, 0, {3, 1});
  REQUIRE(actions_of(stream, Kind::kDecode).size() == 1);
  REQUIRE(stream.asks());
  const auto question = stream.collate_question();
  REQUIRE(question);
  CHECK(question->batch == 0);
  CHECK(question->rows == 1);
  RandomStream expected(1);
  expected.skip(3);
  CHECK(question->random.same_position(expected));

  expected.skip(7);
  stream.collated(0, expected);
  REQUIRE(actions_of(stream, Kind::kDecode).size() == 1);
  CHECK(stream.plan(1, 0).steps[0].left == first_draw(expected));
  CHECK_FALSE(stream.settled(0));
  stream.decoded(0, 0, std::nullopt);
  REQUIRE(stream.settled(0));
  CHECK(stream.pop().random_before_collate.has_value());
}

TEST_CASE("a batch with a failed row is not collated", "[plan_stream]") {
  PlanStream stream(RandomStream(1), draw, /*collate_draws=*/true);
  stream.add_batch(0, 1);
  stream.arrived(0, 0, {3, 1});
  stream.collated(0, RandomStream(5));
  stream.decoded(0, 0, "damaged");
  stream.answered(0, 0, Answer::kFailed, RandomStream(2));
  REQUIRE(stream.settled(0));
  const auto outcome = stream.pop();
  CHECK_FALSE(outcome.random_before_collate.has_value());
  CHECK(outcome.random_after.same_position(RandomStream(2)));
}

TEST_CASE("any order of events gives what one worker after another would give", "[plan_stream]") {
  for (unsigned seed = 0; seed < 3000; ++seed) {
    INFO("seed " << seed);
    Simulation(seed, /*own_streams=*/false).run();
  }
}

TEST_CASE("any order of events gives each row what its own stream gives", "[plan_stream]") {
  for (unsigned seed = 0; seed < 1000; ++seed) {
    INFO("seed " << seed);
    Simulation(seed, /*own_streams=*/true).run();
  }
}

}  // namespace
}  // namespace headrace
