// Feeds any bytes to the trace reader: it must give a summary or an Error, whole or in pieces
// alike.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <span>
#include <string>

#include "headrace/error.h"
#include "headrace/trace.h"

namespace {

std::optional<headrace::TraceSummary> read(std::span<const char> text, std::size_t piece) {
  headrace::TraceReader reader("fuzz");
  try {
    for (std::size_t at = 0; at < text.size(); at += piece) {
      reader.feed(text.subspan(at, std::min(piece, text.size() - at)));
    }
    return reader.finish();
  } catch (const headrace::Error&) {
    return std::nullopt;
  }
}

void check(bool condition) {
  if (!condition) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 2) return 0;
  const std::size_t piece = 1 + data[0];
  const std::span text(reinterpret_cast<const char*>(data) + 1, size - 1);
  const auto whole = read(text, text.size());
  const auto pieces = read(text, piece);
  check(whole.has_value() == pieces.has_value());
  if (!whole) return 0;
  check(whole->metadata_json == pieces->metadata_json);
  check(whole->steps.size() == pieces->steps.size());
  for (const auto& step : whole->steps) {
    std::int64_t sum = 0;
    for (const std::int64_t time : step.time_ns) sum += time;
    check(sum == step.span.end_ns - step.span.begin_ns);
  }
  return 0;
}
