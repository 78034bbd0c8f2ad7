// Cuts the text of a trace into its events, piece by piece as it arrives.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace headrace {

/// Follows strings, braces and brackets only: whether an event is valid JSON is the taker's affair.
class TraceSplitter {
 public:
  /// What takes the parts.
  class Sink {
   public:
    virtual ~Sink() = default;
    /// One object of traceEvents. At least kPadding more bytes may be read behind it.
    /// @param offset of its first byte in the text.
    virtual void event(std::string_view object, std::int64_t offset) = 0;
    /// Any other member of the top-level object, as text.
    virtual void member(std::string_view key, std::string_view value) = 0;
  };

  static constexpr std::size_t kPadding = 64;

  TraceSplitter(Sink& sink, std::string path);

  void feed(std::span<const char> bytes);
  /// @throws Error{kCorruptTrace} when the text isn't over.
  void finish() const;

  /// Control characters within strings, which JSON forbids: replaced by spaces.
  std::int64_t control_characters() const noexcept { return control_characters_; }
  std::int64_t first_control_character() const noexcept { return first_control_character_; }

 private:
  enum class State {
    kStart,      // before the top-level value
    kBeforeKey,  // in the top-level object
    kKey,
    kColon,
    kBeforeValue,
    kValue,   // of another member
    kEvents,  // between events
    kEvent,
    kDone,
  };

  void scan();
  // Each consumes what it can from next_ on and says whether the state changed.
  bool scan_between();
  bool scan_value();
  bool scan_string();
  void begin_token(State state);
  std::string_view token() const;
  [[noreturn]] void fail(const std::string& message, std::size_t at) const;

  Sink& sink_;
  std::string path_;
  State state_ = State::kStart;
  std::vector<char> buffer_;        // unconsumed text and kPadding bytes behind it
  std::size_t size_ = 0;            // of the text in it
  std::size_t next_ = 0;            // first byte not looked at
  std::size_t token_ = 0;           // first byte of the key, value or event
  std::int64_t buffer_offset_ = 0;  // of the buffer in the text
  std::string key_;
  bool top_is_array_ = false;
  bool seen_events_ = false;
  bool in_string_ = false;
  bool escaped_ = false;
  std::size_t depth_ = 0;
  std::int64_t control_characters_ = 0;
  std::int64_t first_control_character_ = -1;
};

}  // namespace headrace
