// One event of a trace, parsed.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace headrace {

/// What the accounting needs of an event. Times in integer nanoseconds; the views are valid until
/// the next parse. Numbers that an event lacks are -1, its texts empty.
struct TraceEvent {
  char phase = 0;  ///< 'X' complete, 'i' instant, ...
  std::string_view category;
  std::string_view name;
  std::int64_t begin_ns = -1;
  std::int64_t duration_ns = 0;
  // From args:
  std::int64_t correlation = -1;
  std::int64_t device = -1;            ///< of a kernel or copy
  std::int64_t bytes = -1;             ///< of a copy
  std::int64_t message_elements = -1;  ///< of a collective
  std::string_view message_type;
  std::string_view group;
  std::int64_t memory_device_type = -1;
  std::int64_t memory_device = -1;
  std::int64_t total_allocated = -1;
  std::int64_t total_reserved = -1;
};

/// One per thread.
class TraceEventParser {
 public:
  /// @param path for error messages only.
  explicit TraceEventParser(std::string path);
  ~TraceEventParser();
  TraceEventParser(const TraceEventParser&) = delete;
  TraceEventParser& operator=(const TraceEventParser&) = delete;

  /// @param object the text, with TraceSplitter::kPadding readable bytes behind it.
  /// @param offset of the text in the file, for error messages.
  /// @throws Error{kCorruptTrace}
  const TraceEvent& parse(std::string_view object, std::int64_t offset);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Microseconds, as text with an optional fraction, to nanoseconds; digits beyond are cut off.
/// @returns false when the text is no number.
bool microseconds_to_ns(std::string_view text, std::int64_t& ns);

}  // namespace headrace
