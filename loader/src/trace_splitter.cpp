#include "trace_splitter.h"

#include <cstring>
#include <utility>

#include "headrace/error.h"

namespace headrace {
namespace {

// Longer is no event: most likely a stray quote turned text and strings inside out.
constexpr std::size_t kMaxEventBytes = std::size_t{64} << 20;

bool is_space(char c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; }

}  // namespace

TraceSplitter::TraceSplitter(Sink& sink, std::string path)
    : sink_(sink), path_(std::move(path)), buffer_(kPadding) {}

void TraceSplitter::fail(const std::string& message, std::size_t at) const {
  const auto byte = buffer_offset_ + static_cast<std::int64_t>(at);
  throw Error(ErrorCode::kCorruptTrace, "byte " + std::to_string(byte) + ": " + message,
              {.stage = "trace", .path = path_});
}

void TraceSplitter::feed(std::span<const char> bytes) {
  // What was consumed goes; what is left is at most one token.
  const bool in_token = state_ == State::kKey || state_ == State::kValue || state_ == State::kEvent;
  const std::size_t keep = in_token ? token_ : next_;
  std::memmove(buffer_.data(), buffer_.data() + keep, size_ - keep);
  size_ -= keep;
  next_ -= keep;
  token_ = 0;
  buffer_offset_ += static_cast<std::int64_t>(keep);
  if (buffer_.size() < size_ + bytes.size() + kPadding) {
    buffer_.resize(size_ + bytes.size() + kPadding);
  }
  if (!bytes.empty()) std::memcpy(buffer_.data() + size_, bytes.data(), bytes.size());
  size_ += bytes.size();
  scan();
}

void TraceSplitter::finish() const {
  if (state_ == State::kDone) return;
  if (state_ == State::kStart) fail("the file is empty. Give a trace of torch.profiler", size_);
  fail("the file ends in the middle of the trace. Was it copied before it was written to the end?",
       size_);
}

void TraceSplitter::begin_token(State state) {
  state_ = state;
  token_ = next_;
  in_string_ = escaped_ = false;
  depth_ = 0;
}

std::string_view TraceSplitter::token() const { return {buffer_.data() + token_, next_ - token_}; }

void TraceSplitter::scan() {
  bool changed = true;
  while (changed && next_ < size_) {
    switch (state_) {
      case State::kKey:
        changed = scan_string();
        if (changed) {
          key_ = token().substr(1, next_ - token_ - 2);
          state_ = State::kColon;
        }
        break;
      case State::kValue:
        changed = scan_value();
        if (changed) {
          std::string_view value = token();
          if (value.empty()) fail("expected a value", token_);
          while (is_space(value.back())) value.remove_suffix(1);
          sink_.member(key_, value);
          state_ = State::kBeforeKey;
        }
        break;
      case State::kEvent:
        changed = scan_value();
        if (changed) {
          sink_.event(token(), buffer_offset_ + static_cast<std::int64_t>(token_));
          state_ = State::kEvents;
        } else if (size_ - token_ > kMaxEventBytes) {
          fail("this event has no end within 64 MiB. Look for a quote without its backslash",
               token_);
        }
        break;
      default:
        changed = scan_between();
    }
  }
}

bool TraceSplitter::scan_between() {
  while (next_ < size_ && is_space(buffer_[next_])) ++next_;
  if (next_ == size_) return false;
  const char c = buffer_[next_];
  switch (state_) {
    case State::kStart:
      if (c != '{' && c != '[') fail("this is not JSON. Give a trace of torch.profiler", next_);
      top_is_array_ = c == '[';
      seen_events_ = top_is_array_;
      state_ = top_is_array_ ? State::kEvents : State::kBeforeKey;
      break;
    case State::kBeforeKey:
      if (c == '"') {
        begin_token(State::kKey);
        return true;
      }
      if (c == '}') {
        if (!seen_events_) {
          fail("JSON without traceEvents. Give a trace of torch.profiler", next_);
        }
        state_ = State::kDone;
      } else if (c != ',') {
        fail("expected the name of a member", next_);
      }
      break;
    case State::kColon:
      if (c != ':') fail("expected a colon", next_);
      state_ = State::kBeforeValue;
      break;
    case State::kBeforeValue:
      if (key_ == "traceEvents") {
        if (c != '[') fail("traceEvents is not an array", next_);
        seen_events_ = true;
        state_ = State::kEvents;
        break;
      }
      begin_token(State::kValue);
      return true;
    case State::kEvents:
      if (c == '{') {
        begin_token(State::kEvent);
        return true;
      }
      if (c == ']') {
        state_ = top_is_array_ ? State::kDone : State::kBeforeKey;
      } else if (c != ',') {
        fail("expected an event", next_);
      }
      break;
    default:  // kDone
      fail("there is more after the end of the trace", next_);
  }
  ++next_;
  return true;
}

// The end of an object, array, string or plain value that begins at token_. A plain value ends
// before the comma or brace behind it.
bool TraceSplitter::scan_value() {
  char* const text = buffer_.data();
  while (next_ < size_) {
    if (in_string_) {
      if (!scan_string()) return false;
      in_string_ = false;
      if (depth_ == 0) return true;
      continue;
    }
    switch (text[next_]) {
      case '"':
        in_string_ = true;
        break;
      case '{':
      case '[':
        ++depth_;
        break;
      case '}':
      case ']':
        if (depth_ == 0) return true;
        if (--depth_ == 0) {
          ++next_;
          return true;
        }
        break;
      case ',':
        if (depth_ == 0) return true;
        break;
      default:
        break;
    }
    ++next_;
  }
  return false;
}

// From inside a string (or, for a key, from its first quote) to behind its last quote.
bool TraceSplitter::scan_string() {
  char* const text = buffer_.data();
  if (state_ == State::kKey && next_ == token_) ++next_;
  while (next_ < size_) {
    char& c = text[next_++];
    if (escaped_) {
      escaped_ = false;
    } else if (c == '"') {
      return true;
    } else if (c == '\\') {
      escaped_ = true;
    }
    if (static_cast<unsigned char>(c) < 0x20) {
      if (control_characters_++ == 0) {
        first_control_character_ = buffer_offset_ + static_cast<std::int64_t>(next_) - 1;
      }
      c = ' ';
    }
  }
  return false;
}

}  // namespace headrace
