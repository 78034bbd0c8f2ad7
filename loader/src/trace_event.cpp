#include "trace_event.h"

#include <simdjson.h>

#include <charconv>
#include <cmath>
#include <utility>

#include "headrace/error.h"
#include "trace_splitter.h"

namespace headrace {

namespace ondemand = simdjson::ondemand;

static_assert(TraceSplitter::kPadding >= simdjson::SIMDJSON_PADDING);

struct TraceEventParser::Impl {
  std::string path;
  ondemand::parser parser;
  TraceEvent event;

  void read_object(ondemand::object object);
  void read_args(ondemand::object args);
};

bool microseconds_to_ns(std::string_view text, std::int64_t& ns) {
  const char* at = text.data();
  const char* const end = at + text.size();
  std::int64_t whole = 0;
  const auto [after, problem] = std::from_chars(at, end, whole);
  if (problem != std::errc{}) return false;
  constexpr std::int64_t kMaxWhole = INT64_MAX / 4000;  // sums of two must not overflow
  if (whole > kMaxWhole || whole < -kMaxWhole) return false;
  std::int64_t fraction = 0;
  at = after;
  if (at != end && *at == '.') {
    std::int64_t unit = 100;
    for (++at; at != end && *at >= '0' && *at <= '9'; ++at, unit /= 10) {
      fraction += unit * (*at - '0');
    }
  }
  if (at != end && (*at == 'e' || *at == 'E')) {  // not torch's own way, but a tool may rewrite it
    double value = 0;
    const auto parsed = std::from_chars(text.data(), end, value);
    if (parsed.ec != std::errc{} || !(std::abs(value) < 9e15)) return false;
    ns = std::llround(value * 1000);
    return true;
  }
  ns = whole * 1000 + (*text.data() == '-' ? -fraction : fraction);
  return true;
}

namespace {

// Eleven days: longer comes from a damaged trace, as of an event that never ended.
constexpr std::int64_t kMaxDurationNs = 1'000'000'000'000'000;

// A number, or a number in a string: tools disagree.
std::string_view number_text(ondemand::value value) {
  std::string_view text = value.raw_json_token();
  if (!text.empty() && text.front() == '"') text.remove_prefix(1);
  return text;
}

std::int64_t integer(ondemand::value value) {
  const std::string_view text = number_text(value);
  std::int64_t number = -1;
  const auto [after, problem] = std::from_chars(text.data(), text.data() + text.size(), number);
  // Larger is no count of anything, and sums of them would overflow.
  constexpr std::int64_t kMaxInteger = std::int64_t{1} << 53;
  return problem == std::errc{} && number <= kMaxInteger && number >= -kMaxInteger ? number : -1;
}

std::string_view text(ondemand::value value) {
  ondemand::json_type type{};
  if (value.type().get(type) != simdjson::SUCCESS || type != ondemand::json_type::string) return {};
  return value.get_string().value();  // throws for a bad escape
}

}  // namespace

void TraceEventParser::Impl::read_args(ondemand::object args) {
  for (auto member : args) {
    const std::string_view key = member.unescaped_key();
    ondemand::value value = member.value();
    // Device is the one of a copy or kernel; in the oldest traces an operator has the process here.
    if (key == "correlation") {
      event.correlation = integer(value);
    } else if (key == "device") {
      event.device = integer(value);
    } else if (key == "bytes") {
      event.bytes = integer(value);
    } else if (key == "In msg nelems") {
      event.message_elements = integer(value);
    } else if (key == "dtype") {
      event.message_type = text(value);
    } else if (key == "Process Group Name") {
      event.group = text(value);
    } else if (key == "Device Type") {
      event.memory_device_type = integer(value);
    } else if (key == "Device Id") {
      event.memory_device = integer(value);
    } else if (key == "Total Allocated") {
      event.total_allocated = integer(value);
    } else if (key == "Total Reserved") {
      event.total_reserved = integer(value);
    }
  }
}

void TraceEventParser::Impl::read_object(ondemand::object object) {
  for (auto member : object) {
    const std::string_view key = member.unescaped_key();
    ondemand::value value = member.value();
    if (key == "ph") {
      const std::string_view phase = text(value);
      event.phase = phase.empty() ? '\0' : phase.front();
    } else if (key == "cat") {
      event.category = text(value);
    } else if (key == "name") {
      event.name = text(value);
    } else if (key == "ts") {
      if (!microseconds_to_ns(number_text(value), event.begin_ns)) event.begin_ns = -1;
    } else if (key == "dur") {
      const bool valid = microseconds_to_ns(number_text(value), event.duration_ns);
      if (!valid || event.duration_ns > kMaxDurationNs) event.duration_ns = 0;
    } else if (key == "args") {
      ondemand::json_type type{};
      if (value.type().get(type) == simdjson::SUCCESS && type == ondemand::json_type::object) {
        read_args(value.get_object());
      }
    }
  }
}

TraceEventParser::TraceEventParser(std::string path) : impl_(std::make_unique<Impl>()) {
  impl_->path = std::move(path);
}

TraceEventParser::~TraceEventParser() = default;

const TraceEvent& TraceEventParser::parse(std::string_view object, std::int64_t offset) {
  impl_->event = {};
  std::int64_t at = offset;
  try {
    ondemand::document document = impl_->parser.iterate(object.data(), object.size(),
                                                        object.size() + TraceSplitter::kPadding);
    try {
      impl_->read_object(document.get_object());
    } catch (const simdjson::simdjson_error&) {
      const char* location = nullptr;
      if (document.current_location().get(location) == simdjson::SUCCESS) {
        at = offset + (location - object.data());
      }
      throw;
    }
  } catch (const simdjson::simdjson_error& error) {
    throw Error(ErrorCode::kCorruptTrace,
                "byte " + std::to_string(at) +
                    ": not valid JSON in the event that begins at byte " + std::to_string(offset) +
                    ": " + error.what() +
                    ". Look there for a quote without its backslash, or record the trace again",
                {.stage = "trace", .path = impl_->path});
  }
  return impl_->event;
}

}  // namespace headrace
