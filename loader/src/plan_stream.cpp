#include "plan_stream.h"

#include <algorithm>
#include <cassert>
#include <utility>

namespace headrace {

RandomStream PlanStream::Position::stream() const {
  RandomStream stream = *base;
  stream.skip(words);
  return stream;
}

PlanStream::PlanStream(RandomStream random, Planner planner, bool collate_draws)
    : random_(random),
      base_(std::make_shared<RandomStream>(random)),
      planner_(std::move(planner)),
      collate_draws_(collate_draws) {}

PlanStream::PlanStream(RowStart row_start, Planner planner)
    : PlanStream(RandomStream(0), std::move(planner)) {
  row_start_ = std::move(row_start);
}

void PlanStream::add_batch(std::uint64_t id, std::size_t rows) {
  Batch& batch = batches_.emplace_back();
  batch.id = id;
  batch.rows.resize(rows);
  batch.collate_draws = collate_draws_;
  advance();
}

void PlanStream::add_opaque_batch(std::uint64_t id, std::string reason) {
  Batch& batch = batches_.emplace_back();
  batch.id = id;
  Row& row = batch.rows.emplace_back();
  row.state = RowState::kDoubtful;
  row.read_pending = false;
  row.doubt = std::move(reason);
  advance();
}

void PlanStream::arrived(std::uint64_t batch_id, std::size_t row_index, ImageSize size) {
  Batch& batch = find(batch_id);
  Row& row = batch.rows[row_index];
  row.read_pending = false;
  if (row.state != RowState::kReading) return;
  row.state = RowState::kArrived;
  row.size = size;
  if (row_start_) plan_row(batch, row_index);
  advance();
}

void PlanStream::doubtful(std::uint64_t batch, std::size_t row_index, std::string reason) {
  Row& row = find(batch).rows[row_index];
  row.read_pending = false;
  if (row.state != RowState::kReading) return;
  row.state = RowState::kDoubtful;
  row.doubt = std::move(reason);
  advance();
}

void PlanStream::decoded(std::uint64_t batch_id, std::size_t row_index,
                         std::optional<std::string> doubt) {
  Batch& batch = find(batch_id);
  Row& row = batch.rows[row_index];
  assert(row.decode_pending);
  row.decode_pending = false;
  --batch.decodes_pending;
  const bool stale = std::exchange(row.stale, false);
  if (row.state == RowState::kDropped) return;
  if (doubt) {
    row.state = RowState::kDoubtful;
    row.doubt = std::move(*doubt);
  } else if (stale) {
    read_again(batch, row_index);
  } else {
    row.state = RowState::kDone;
  }
  advance();
}

void PlanStream::answered(std::uint64_t batch_id, std::size_t row_index, Answer answer,
                          const RandomStream& random_after) {
  assert(settle_cursor_.batch < batches_.size());
  Batch& batch = batches_[settle_cursor_.batch];
  Row& row = batch.rows[row_index];
  assert(batch.id == batch_id && settle_cursor_.row == row_index);
  assert(row.state == RowState::kDoubtful);
  (void)batch_id;

  const bool failed = answer == Answer::kFailed;
  row.state = failed                       ? RowState::kFailed
              : answer == Answer::kSkipped ? RowState::kSkipped
                                           : RowState::kAnswered;
  if (row_start_) {
    if (failed) {
      batch.failed_row = row_index;
      drop_rows(batch, row_index + 1);
    }
    advance();
    return;
  }
  if (!failed && row.planned && row.after.stream().same_position(random_after)) {
    advance();
    return;
  }
  // The stream goes on from elsewhere than was assumed, so all later plans are void.
  if (row.planned) ++rollbacks_;
  if (failed) {
    batch.failed_row = row_index;
    drop_rows(batch, row_index + 1);
  } else {
    take_back(batch, row_index + 1);
  }
  for (std::size_t i = settle_cursor_.batch + 1; i < batches_.size(); ++i) {
    take_back(batches_[i], 0);
  }
  restart_from(random_after);
  if (failed) {
    batch.end = position();
    plan_cursor_ = {settle_cursor_.batch + 1, 0};
  } else {
    plan_cursor_ = {settle_cursor_.batch, row_index + 1};
  }
  advance();
}

void PlanStream::collated(std::uint64_t batch_id, const RandomStream& random_after) {
  assert(asks_collate());
  Batch& batch = batches_[plan_cursor_.batch];
  assert(batch.id == batch_id);
  (void)batch_id;
  batch.before_collate = position();
  restart_from(random_after);
  advance();
}

void PlanStream::rewind(const RandomStream& random) {
  if (row_start_) return;
  const RandomStream expected = batches_.empty() ? random_ : batches_.front().start.stream();
  if (expected.same_position(random)) return;
  if (plan_cursor_.batch > 0 || plan_cursor_.row > 0) ++rollbacks_;
  for (auto& batch : batches_) take_back(batch, 0);
  plan_cursor_ = {};
  settle_cursor_ = {};
  restart_from(random);
  advance();
}

const Plan& PlanStream::plan(std::uint64_t batch, std::size_t row) const {
  return find(batch).rows[row].plan;
}

bool PlanStream::wanted(std::uint64_t batch, std::size_t row) const {
  return find(batch).rows[row].state == RowState::kReading;
}

std::vector<PlanStream::Action> PlanStream::take_actions() { return std::exchange(actions_, {}); }

bool PlanStream::asks_row() const {
  if (settle_cursor_.batch == batches_.size()) return false;
  const auto& rows = batches_[settle_cursor_.batch].rows;
  return settle_cursor_.row < rows.size() && rows[settle_cursor_.row].state == RowState::kDoubtful;
}

bool PlanStream::asks_collate() const {
  if (plan_cursor_.batch == batches_.size()) return false;
  const Batch& batch = batches_[plan_cursor_.batch];
  return plan_cursor_.row == batch.rows.size() && awaits_collate(batch);
}

std::optional<PlanStream::CollateQuestion> PlanStream::collate_question() const {
  if (!asks_collate()) return std::nullopt;
  const Batch& batch = batches_[plan_cursor_.batch];
  return CollateQuestion{.batch = batch.id, .rows = batch.rows.size(), .random = random_};
}

std::optional<PlanStream::Question> PlanStream::question() const {
  if (!asks_row()) return std::nullopt;
  const Batch& batch = batches_[settle_cursor_.batch];
  const Row& row = batch.rows[settle_cursor_.row];
  return Question{.batch = batch.id,
                  .row = settle_cursor_.row,
                  .reason = row.doubt,
                  .random = before(batch, settle_cursor_.row)};
}

bool PlanStream::settled(std::uint64_t id) const {
  const Batch& batch = find(id);
  const bool passed =
      settle_cursor_.batch == batches_.size() || batches_[settle_cursor_.batch].id > id;
  return passed && batch.decodes_pending == 0;
}

PlanStream::Outcome PlanStream::pop() {
  assert(!batches_.empty() && settled(batches_.front().id));
  const Batch batch = std::move(batches_.front());
  batches_.pop_front();
  if (!row_start_) --plan_cursor_.batch;
  --settle_cursor_.batch;
  Outcome outcome{.failed_row = batch.failed_row,
                  .skipped_rows = {},
                  .random_after = row_start_ ? random_ : batch.end.stream(),
                  .random_before_collate = {}};
  if (batch.before_collate && !batch.failed_row) {
    outcome.random_before_collate = batch.before_collate->stream();
  }
  for (std::size_t row = 0; row < batch.rows.size(); ++row) {
    if (batch.rows[row].state == RowState::kSkipped) outcome.skipped_rows.push_back(row);
  }
  return outcome;
}

const PlanStream::Batch& PlanStream::find(std::uint64_t id) const {
  const auto it = std::ranges::find(batches_, id, &Batch::id);
  assert(it != batches_.end());
  return *it;
}

PlanStream::Batch& PlanStream::find(std::uint64_t id) {
  return const_cast<Batch&>(std::as_const(*this).find(id));
}

PlanStream::Position PlanStream::position() const {
  return {base_, random_.words_drawn() - base_->words_drawn()};
}

void PlanStream::restart_from(const RandomStream& random) {
  random_ = random;
  base_ = std::make_shared<RandomStream>(random);
}

RandomStream PlanStream::before(const Batch& batch, std::size_t row_index) const {
  if (row_start_) return row_start_(batch.id, row_index);
  // Without a plan the plan cursor stands here too, and random_ with it.
  const Row& row = batch.rows[row_index];
  return row.planned ? row.before.stream() : random_;
}

bool PlanStream::plan_row(Batch& batch, std::size_t row_index) {
  Row& row = batch.rows[row_index];
  if (row.state != RowState::kArrived) return false;
  if (row_start_) {
    RandomStream own = row_start_(batch.id, row_index);
    row.plan = planner_(row.size, own);
  } else {
    row.before = position();
    row.plan = planner_(row.size, random_);
    row.after = position();
  }
  if (!row.plan.doubt.empty()) {
    if (!row_start_) restart_from(row.before.stream());
    row.state = RowState::kDoubtful;
    row.doubt = row.plan.doubt;
    actions_.push_back({Action::Kind::kRelease, batch.id, row_index});
    return false;
  }
  row.planned = true;
  row.state = RowState::kDecoding;
  row.decode_pending = true;
  ++batch.decodes_pending;
  actions_.push_back({Action::Kind::kDecode, batch.id, row_index});
  return true;
}

void PlanStream::take_back(Batch& batch, std::size_t first_row) {
  if (first_row == 0) batch.start = {};
  batch.before_collate.reset();
  if (batch.failed_row && *batch.failed_row >= first_row) batch.failed_row.reset();
  for (std::size_t row = first_row; row < batch.rows.size(); ++row) take_back_row(batch, row);
}

void PlanStream::take_back_row(Batch& batch, std::size_t row_index) {
  Row& row = batch.rows[row_index];
  row.planned = false;
  switch (row.state) {
    case RowState::kReading:
    case RowState::kArrived:
    case RowState::kDoubtful:
      break;
    case RowState::kDecoding:
      row.stale = true;
      break;
    case RowState::kDone:
      read_again(batch, row_index);
      break;
    case RowState::kAnswered:
    case RowState::kSkipped:
    case RowState::kFailed:
      row.state = RowState::kDoubtful;
      break;
    case RowState::kDropped:
      if (row.decode_pending) {
        row.state = RowState::kDecoding;
        row.stale = true;
      } else {
        read_again(batch, row_index);
      }
      break;
  }
}

void PlanStream::drop_rows(Batch& batch, std::size_t first_row) {
  for (std::size_t i = first_row; i < batch.rows.size(); ++i) {
    Row& row = batch.rows[i];
    if (row.state == RowState::kArrived) {
      actions_.push_back({Action::Kind::kRelease, batch.id, i});
    }
    row.state = RowState::kDropped;
    row.planned = false;
  }
}

void PlanStream::read_again(Batch& batch, std::size_t row_index) {
  Row& row = batch.rows[row_index];
  row.state = RowState::kReading;
  if (std::exchange(row.read_pending, true)) return;
  actions_.push_back({Action::Kind::kRead, batch.id, row_index});
}

void PlanStream::advance() {
  for (; !row_start_ && plan_cursor_.batch < batches_.size();
       ++plan_cursor_.batch, plan_cursor_.row = 0) {
    Batch& batch = batches_[plan_cursor_.batch];
    if (batch.start.base == nullptr) {
      restart_from(random_);  // a base for each batch keeps the way to any of its rows short
      batch.start = position();
    }
    while (plan_cursor_.row < batch.rows.size() && plan_row(batch, plan_cursor_.row)) {
      ++plan_cursor_.row;
    }
    if (plan_cursor_.row < batch.rows.size() || awaits_collate(batch)) break;
    batch.end = position();
  }
  for (; settle_cursor_.batch < batches_.size(); ++settle_cursor_.batch, settle_cursor_.row = 0) {
    const Batch& batch = batches_[settle_cursor_.batch];
    const auto final_row = [&](std::size_t row) {
      return batch.rows[row].state == RowState::kDone ||
             batch.rows[row].state == RowState::kAnswered ||
             batch.rows[row].state == RowState::kSkipped;
    };
    while (settle_cursor_.row < batch.rows.size() && final_row(settle_cursor_.row)) {
      ++settle_cursor_.row;
    }
    if (settle_cursor_.row == batch.rows.size()) {
      if (awaits_collate(batch)) break;
    } else if (batch.rows[settle_cursor_.row].state != RowState::kFailed) {
      break;
    }
  }
}

}  // namespace headrace
