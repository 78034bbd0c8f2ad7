#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "headrace/jpeg.h"
#include "jpeg_metadata.h"

namespace headrace {
namespace {

using Bytes = std::span<const std::uint8_t>;

enum Marker : std::uint8_t {
  kBaselineFrame = 0xC0,
  kExtendedFrame = 0xC1,
  kProgressiveFrame = 0xC2,
  kHuffmanTables = 0xC4,
  kFirstRestart = 0xD0,
  kLastRestart = 0xD7,
  kStartOfImage = 0xD8,
  kEndOfImage = 0xD9,
  kStartOfScan = 0xDA,
  kQuantTables = 0xDB,
  kRestartInterval = 0xDD,
  kFirstApplication = 0xE0,
  kLastApplication = 0xEF,
  kComment = 0xFE,
};

constexpr int kCoefficients = 64;
constexpr std::int8_t kUnseen = -1;

struct Component {
  std::uint8_t id = 0;
  /// Low bits that are still missing, for each coefficient.
  std::array<std::int8_t, kCoefficients> missing_bits;
};

/// The spectral selection and successive approximation of one scan.
struct ScanRange {
  int first, last;
  int missing_before, missing_after;

  bool operator==(const ScanRange&) const = default;
  bool refines() const { return missing_before != 0; }
};

std::string marker_name(std::uint8_t marker) {
  constexpr char kDigits[] = "0123456789ABCDEF";
  return std::string("FF") + kDigits[marker >> 4] + kDigits[marker & 15];
}

std::uint32_t u16(Bytes bytes, std::size_t at) {
  return static_cast<std::uint32_t>(bytes[at]) << 8 | bytes[at + 1];
}

/// One pass over one file. A step that finds a doubt notes it and returns; run() then stops.
class Inspector {
 public:
  Inspector(Bytes file, std::uint64_t pixel_limit, ExifOrientation orientation)
      : file_(file), pixel_limit_(pixel_limit), orientation_(orientation) {}

  std::variant<ImageSize, Doubt> run();

 private:
  void read_segment();
  void read_payload(std::uint8_t marker, Bytes payload);
  void read_frame(std::uint8_t marker, Bytes payload);
  void read_huffman_tables(Bytes payload);
  void read_quant_tables(Bytes payload);
  void read_scan(Bytes payload);
  void read_scan_component(std::uint8_t id, std::uint8_t tables, const ScanRange& range);
  void skip_entropy_coded_data();
  void finish();

  std::size_t left() const { return file_.size() - pos_; }
  void doubt(std::string reason) {
    if (doubt_.empty()) doubt_ = std::move(reason);
  }

  const Bytes file_;
  const std::uint64_t pixel_limit_;
  const ExifOrientation orientation_;
  std::size_t pos_ = 0;
  std::string doubt_;
  bool ended_ = false;

  JpegMetadata metadata_;
  ImageSize size_;
  bool progressive_ = false;
  std::array<Component, 4> components_;
  std::size_t component_count_ = 0;        ///< 0 until the frame header
  std::uint32_t huffman_tables_seen_ = 0;  ///< bit `class * 16 + slot`, class 0 DC, 1 AC
  std::uint32_t restart_interval_ = 0;
  bool has_scan_ = false;
};

std::variant<ImageSize, Doubt> Inspector::run() {
  if (left() < 3 || file_[0] != 0xFF || file_[1] != kStartOfImage || file_[2] != 0xFF) {
    return Doubt{"not a JPEG file"};
  }
  pos_ = 2;
  while (!ended_ && doubt_.empty()) read_segment();
  if (!doubt_.empty()) return Doubt{std::move(doubt_)};
  return size_;
}

void Inspector::read_segment() {
  if (left() < 2) return doubt("no end-of-image marker");
  if (file_[pos_] != 0xFF) return doubt("stray bytes between segments");
  const std::uint8_t marker = file_[pos_ + 1];
  pos_ += 2;
  if (marker == kEndOfImage) return finish();

  if (left() < 2) return doubt("no end-of-image marker");
  const std::size_t length = u16(file_, pos_);
  if (length < 2) return doubt("segment " + marker_name(marker) + " is too short");
  if (length > left()) return doubt("segment " + marker_name(marker) + " is cut off");
  const Bytes payload = file_.subspan(pos_ + 2, length - 2);
  pos_ += length;
  read_payload(marker, payload);
}

void Inspector::read_payload(std::uint8_t marker, Bytes payload) {
  switch (marker) {
    case kBaselineFrame:
    case kExtendedFrame:
    case kProgressiveFrame:
      return read_frame(marker, payload);
    case kHuffmanTables:
      return read_huffman_tables(payload);
    case kQuantTables:
      return read_quant_tables(payload);
    case kStartOfScan:
      return read_scan(payload);
    case kRestartInterval:
      if (payload.size() != 2) return doubt("bad restart interval");
      restart_interval_ = u16(payload, 0);
      return;
    case kComment:
      return;
    default:
      break;
  }
  if (marker < kFirstApplication || marker > kLastApplication) {
    return doubt("unexpected marker " + marker_name(marker));
  }
  if (!has_scan_) doubt(std::string(metadata_.add(marker, payload)));
}

void Inspector::read_frame(std::uint8_t marker, Bytes payload) {
  if (component_count_ != 0) return doubt("more than one frame header");
  if (payload.size() < 6) return doubt("bad frame header");
  if (payload[0] != 8) return doubt("not 8 bits a sample");
  const std::size_t count = payload[5];
  if (count != 1 && count != 3 && count != 4) return doubt("neither 1, 3 nor 4 components");
  if (payload.size() != 6 + 3 * count) return doubt("bad frame header");

  const std::uint32_t height = u16(payload, 1);
  const std::uint32_t width = u16(payload, 3);
  if (width == 0 || height == 0) return doubt("empty image, or height given later");
  if (std::uint64_t{width} * height > pixel_limit_) return doubt("more pixels than the limit");

  for (std::size_t i = 0; i < count; ++i) {
    const Bytes fields = payload.subspan(6 + 3 * i, 3);
    const int horizontal = fields[1] >> 4;
    const int vertical = fields[1] & 15;
    if (horizontal < 1 || horizontal > 4 || vertical < 1 || vertical > 4) {
      return doubt("bad sampling factors");
    }
    for (std::size_t j = 0; j < i; ++j) {
      if (components_[j].id == fields[0]) return doubt("two components of the same name");
    }
    components_[i].id = fields[0];
    components_[i].missing_bits.fill(kUnseen);
  }
  size_ = {static_cast<int>(width), static_cast<int>(height)};
  progressive_ = marker == kProgressiveFrame;
  component_count_ = count;
}

void Inspector::read_huffman_tables(Bytes payload) {
  while (!payload.empty()) {
    if (payload.size() < 17) return doubt("bad Huffman table segment");
    const std::uint8_t selector = payload[0];
    if (selector > 0x1F) return doubt("bad Huffman table segment");
    std::size_t size = 17;
    for (const std::uint8_t codes : payload.subspan(1, 16)) size += codes;
    if (payload.size() < size) return doubt("bad Huffman table segment");
    huffman_tables_seen_ |= 1U << selector;
    payload = payload.subspan(size);
  }
}

void Inspector::read_quant_tables(Bytes payload) {
  while (!payload.empty()) {
    const std::size_t size = payload[0] >> 4 == 0 ? 65 : 129;
    if (payload.size() < size) return doubt("bad quantization table segment");
    payload = payload.subspan(size);
  }
}

void Inspector::read_scan(Bytes payload) {
  if (component_count_ == 0) return doubt("scan before the frame header");
  if (!has_scan_) {
    doubt(std::string(metadata_.judge_exif()));
    if (orientation_ == ExifOrientation::kApplied) {
      doubt(std::string(metadata_.judge_orientation()));
    }
  }
  has_scan_ = true;

  if (payload.empty() || payload[0] < 1 || payload[0] > component_count_ ||
      payload.size() != 4 + 2 * std::size_t{payload[0]}) {
    return doubt("bad scan header");
  }
  const std::size_t count = payload[0];
  const Bytes fields = payload.last(3);
  const ScanRange range{fields[0], fields[1], fields[2] >> 4, fields[2] & 15};
  if (progressive_) {
    const bool only_dc = range.first == 0 && range.last == 0;
    const bool only_ac =
        range.first > 0 && range.first <= range.last && range.last < kCoefficients && count == 1;
    if (!only_dc && !only_ac) return doubt("bad progressive scan");
  } else if (range != ScanRange{0, kCoefficients - 1, 0, 0}) {
    return doubt("progressive scan of a sequential frame");
  }
  for (std::size_t i = 0; i < count; ++i) {
    read_scan_component(payload[1 + 2 * i], payload[2 + 2 * i], range);
  }
  skip_entropy_coded_data();
}

void Inspector::read_scan_component(std::uint8_t id, std::uint8_t tables, const ScanRange& range) {
  const auto end = components_.begin() + static_cast<std::ptrdiff_t>(component_count_);
  const auto component =
      std::find_if(components_.begin(), end, [id](const Component& c) { return c.id == id; });
  if (component == end) return doubt("scan of an unknown component");

  // libjpeg falls back on default tables (motion JPEG), or on none.
  const bool needs_dc = range.first == 0 && !range.refines();
  const bool needs_ac = range.last > 0;
  if ((needs_dc && !(huffman_tables_seen_ >> (tables >> 4) & 1)) ||
      (needs_ac && !(huffman_tables_seen_ >> (16 + (tables & 15)) & 1))) {
    return doubt("missing Huffman table");
  }

  // A coefficient's bits must come once each, from the top: libjpeg takes other orders with results
  // that depend on its version.
  auto& missing = component->missing_bits;
  if (range.first > 0 && missing[0] == kUnseen) return doubt("scans out of order");
  for (int k = range.first; k <= range.last; ++k) {
    const int expected = range.refines() ? range.missing_before : kUnseen;
    if (missing[static_cast<std::size_t>(k)] != expected) return doubt("scans out of order");
    missing[static_cast<std::size_t>(k)] = static_cast<std::int8_t>(range.missing_after);
  }
  if (range.refines() && range.missing_after != range.missing_before - 1) {
    doubt("scans out of order");
  }
}

void Inspector::skip_entropy_coded_data() {
  int next_restart = 0;
  bool filled = false;
  while (true) {
    const void* found = std::memchr(file_.data() + pos_, 0xFF, left());
    if (found == nullptr) return doubt("no end-of-image marker");
    pos_ = static_cast<std::size_t>(static_cast<const std::uint8_t*>(found) - file_.data());
    if (left() < 2) return doubt("no end-of-image marker");

    const std::uint8_t next = file_[pos_ + 1];
    const bool is_restart = next >= kFirstRestart && next <= kLastRestart;
    if (next == 0xFF) {
      filled = true;  // some cameras fill up to a block boundary before the end of the image
      ++pos_;
      continue;
    }
    if (next != 0 && !is_restart) return;
    if (filled) return doubt("fill bytes within a scan");
    if (is_restart) {
      if (restart_interval_ == 0 || next != kFirstRestart + next_restart) {
        return doubt("restart marker out of sequence");
      }
      next_restart = (next_restart + 1) % 8;
    }
    pos_ += 2;
  }
}

void Inspector::finish() {
  ended_ = true;
  // An incomplete image is smoothed, differently by each version of libjpeg.
  for (std::size_t i = 0; i < component_count_; ++i) {
    const auto& missing = components_[i].missing_bits;
    if (std::any_of(missing.begin(), missing.end(), [](std::int8_t bits) { return bits != 0; })) {
      return doubt("incomplete scans");
    }
  }
  if (component_count_ == 0) doubt("no frame header");
}

}  // namespace

std::variant<ImageSize, Doubt> inspect_jpeg(std::span<const std::byte> file,
                                            std::uint64_t pixel_limit,
                                            ExifOrientation orientation) {
  const Bytes bytes(reinterpret_cast<const std::uint8_t*>(file.data()), file.size());
  return Inspector(bytes, pixel_limit, orientation).run();
}

}  // namespace headrace
