#include "read_ahead.h"
#include "support.h"

namespace headrace {
namespace {

using HeldBack = ReadAhead::HeldBack;

/// Lets one period of decodes begin.
bool pass_period(ReadAhead& ahead, std::size_t ready, HeldBack held_back) {
  bool changed = false;
  for (int i = 0; i < ReadAhead::kPeriod; ++i) changed |= ahead.decode_began(ready, held_back);
  return changed;
}

TEST_CASE("read-ahead grows where decoding runs dry, by what holds it back", "[read_ahead]") {
  ReadAhead ahead({.least_depth = 4, .most_depth = 12, .least_bytes = 100, .most_bytes = 350});
  CHECK(ahead.depth() == 4);
  CHECK(ahead.bytes() == 100);
  CHECK(pass_period(ahead, 0, HeldBack::kByDepth));
  CHECK(ahead.depth() == 8);
  CHECK(ahead.bytes() == 100);
  CHECK(pass_period(ahead, 0, HeldBack::kByBytes));
  CHECK(ahead.depth() == 8);
  CHECK(ahead.bytes() == 200);
  pass_period(ahead, 0, HeldBack::kByDepth);
  CHECK(ahead.depth() == 12);
  CHECK_FALSE(pass_period(ahead, 0, HeldBack::kByDepth));
  pass_period(ahead, 0, HeldBack::kByBytes);
  CHECK(ahead.bytes() == 350);
  CHECK_FALSE(pass_period(ahead, 0, HeldBack::kByBytes));
}

TEST_CASE("read-ahead stays where more of it would not help", "[read_ahead]") {
  ReadAhead ahead({.least_depth = 4, .most_depth = 12, .least_bytes = 100, .most_bytes = 350});
  CHECK_FALSE(pass_period(ahead, 0, HeldBack::kNothing));  // the training is what takes time
  CHECK_FALSE(pass_period(ahead, 1, HeldBack::kByDepth));
  CHECK_FALSE(pass_period(ahead, 1, HeldBack::kByBytes));
  for (int i = 0; i < 100 * ReadAhead::kPeriod; ++i) {
    CHECK_FALSE(ahead.decode_began(i % 2, HeldBack::kByDepth));  // dry half of the time
  }
}

TEST_CASE("read-ahead goes back while plenty lies ready, to where it began", "[read_ahead]") {
  ReadAhead ahead({.least_depth = 4, .most_depth = 8, .least_bytes = 100, .most_bytes = 200});
  pass_period(ahead, 0, HeldBack::kByDepth);
  pass_period(ahead, 0, HeldBack::kByBytes);
  CHECK(pass_period(ahead, ReadAhead::kPlenty, HeldBack::kByBytes));
  CHECK(ahead.depth() == 7);
  CHECK(ahead.bytes() == 175);
  CHECK_FALSE(pass_period(ahead, ReadAhead::kPlenty - 1, HeldBack::kByBytes));
  for (int i = 0; i < 10; ++i) pass_period(ahead, 1000, HeldBack::kNothing);
  CHECK(ahead.depth() == 4);
  CHECK(ahead.bytes() == 100);
}

}  // namespace
}  // namespace headrace
