#include <zlib.h>

#include <algorithm>
#include <limits>
#include <string>
#include <string_view>

#include "byte_order.h"
#include "exif_orientation.h"
#include "png_file.h"

namespace headrace {
namespace {

using Bytes = std::span<const std::uint8_t>;
using namespace std::string_view_literals;

constexpr std::string_view kSignature = "\x89PNG\r\n\x1a\n"sv;
constexpr std::size_t kChunkOverhead = 12;  // length, name, checksum
constexpr std::size_t kHeaderSize = 13;

// Pillow refuses compressed metadata that gets longer than MAX_TEXT_CHUNK (1 MiB) and 64 times that
// of text in all. Nothing near it belongs into a picture.
constexpr std::size_t kMetadataLimit = 1 << 20;

std::string_view text_of(Bytes bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

struct Chunk {
  std::string_view name;
  Bytes data;
  std::uint32_t checksum = 0;

  bool intact() const {
    // zlib takes 32-bit lengths; a PNG chunk has 31 bits.
    const auto* start = reinterpret_cast<const Bytef*>(name.data());
    return crc32(crc32(0, nullptr, 0), start, static_cast<uInt>(name.size() + data.size())) ==
           checksum;
  }
  /// Ancillary chunks begin with a small letter: a decoder may pass over them.
  bool ancillary() const { return name.front() >= 'a'; }
};

/// Takes the next chunk of the file; none at the file's end and where no chunk is.
std::optional<Chunk> take_chunk(Bytes& file) {
  if (file.size() < kChunkOverhead) return {};
  const Numbers numbers{file};
  const std::size_t length = numbers.u32(0);
  if (length > file.size() - kChunkOverhead) return {};
  Chunk chunk{text_of(file.subspan(4, 4)), file.subspan(8, length), numbers.u32(8 + length)};
  const bool named = std::ranges::all_of(chunk.name, [](char letter) {
    return (letter >= 'A' && letter <= 'Z') || (letter >= 'a' && letter <= 'z');
  });
  if (!named) return {};
  file = file.subspan(length + kChunkOverhead);
  return chunk;
}

/// How long a zlib stream gets, as far as it is intact, up to `limit`.
std::size_t inflated_size(Bytes stream, std::size_t limit) {
  z_stream z{};
  if (inflateInit(&z) != Z_OK) return limit;
  std::array<Bytef, 8192> scratch;
  z.next_in = const_cast<Bytef*>(stream.data());  // zlib does not write there
  z.avail_in = static_cast<uInt>(stream.size());
  int status = Z_OK;
  while (status == Z_OK && z.total_out < limit) {
    z.next_out = scratch.data();
    z.avail_out = scratch.size();
    status = inflate(&z, Z_NO_FLUSH);
  }
  const std::size_t size = std::min<std::size_t>(z.total_out, limit);
  inflateEnd(&z);
  return size;
}

/// One pass over one file, by the rules of PIL/PngImagePlugin.py (version 13). A step that finds a
/// doubt notes it and returns; run() then stops.
class Inspector {
 public:
  Inspector(Bytes file, std::uint64_t pixel_limit, ExifOrientation orientation)
      : rest_(file), pixel_limit_(pixel_limit), orientation_(orientation) {}

  std::variant<ImageSize, Doubt> run();

 private:
  void read_header();
  void read_chunk(const Chunk& chunk);
  void read_image_data();
  void read_palette(const Chunk& chunk);
  void read_transparency(const Chunk& chunk);
  void read_metadata(const Chunk& chunk);
  void read_text(std::string_view name, std::string_view data);
  void finish();

  bool is_palette() const { return color_type_ == 3; }
  void count_metadata(std::size_t size) {
    metadata_size_ += size;
    if (metadata_size_ >= kMetadataLimit) doubt("much metadata");
  }
  void doubt(std::string reason) {
    if (doubt_.empty()) doubt_ = std::move(reason);
  }

  Bytes rest_;
  const std::uint64_t pixel_limit_;
  const ExifOrientation orientation_;
  std::string doubt_;
  bool ended_ = false;

  ImageSize size_;
  int color_type_ = 0;
  std::size_t palette_size_ = 0;
  bool has_pixels_ = false;
  std::size_t metadata_size_ = 0;
  MetadataOrientation metadata_orientation_;
};

std::variant<ImageSize, Doubt> Inspector::run() {
  if (!text_of(rest_).starts_with(kSignature)) return Doubt{"not a PNG file"};
  rest_ = rest_.subspan(kSignature.size());
  read_header();
  while (!ended_ && doubt_.empty()) {
    const Bytes before = rest_;
    const auto chunk = take_chunk(rest_);
    if (!chunk) {
      doubt("broken or missing chunk");
    } else if (chunk->name == "IDAT") {
      rest_ = before;
      read_image_data();
    } else {
      read_chunk(*chunk);
    }
  }
  if (!doubt_.empty()) return Doubt{std::move(doubt_)};
  return size_;
}

void Inspector::read_header() {
  const auto chunk = take_chunk(rest_);
  if (!chunk || chunk->name != "IHDR" || chunk->data.size() != kHeaderSize || !chunk->intact()) {
    return doubt("bad header");
  }
  const Numbers numbers{chunk->data};
  const std::uint32_t width = numbers.u32(0);
  const std::uint32_t height = numbers.u32(4);
  constexpr std::uint32_t kLargest = std::numeric_limits<int>::max();
  if (width == 0 || height == 0 || width > kLargest || height > kLargest) return doubt("bad size");
  if (std::uint64_t{width} * height > pixel_limit_) return doubt("more pixels than the limit");
  size_ = {static_cast<int>(width), static_cast<int>(height)};

  const int bits = chunk->data[8];
  color_type_ = chunk->data[9];
  const bool whole_bytes = bits == 8 || bits == 16;
  switch (color_type_) {
    case 0:
      if (bits == 16) return doubt("16-bit gray");
      [[fallthrough]];
    case 3:
      if (bits != 1 && bits != 2 && bits != 4 && bits != 8) return doubt("bad bit depth");
      break;
    case 2:
    case 4:
    case 6:
      if (!whole_bytes) return doubt("bad bit depth");
      break;
    default:
      return doubt("bad color type");
  }
  const bool known = chunk->data[10] == 0 && chunk->data[11] == 0 && chunk->data[12] <= 1;
  if (!known) doubt("unknown compression, filter or interlace method");
}

void Inspector::read_image_data() {
  if (has_pixels_) return doubt("image data in two places");
  if (is_palette() && palette_size_ == 0) return doubt("no palette");
  has_pixels_ = true;
  // Their checksums are the decoder's business: Pillow does not look at them.
  while (text_of(rest_).substr(std::min<std::size_t>(4, rest_.size())).starts_with("IDAT")) {
    if (!take_chunk(rest_)) return doubt("image data is cut off");
  }
}

void Inspector::read_chunk(const Chunk& chunk) {
  // Pillow checks those before the image data only.
  if (!chunk.intact()) return doubt("bad checksum in " + std::string(chunk.name));
  if (chunk.name == "IEND") {
    finish();
  } else if (chunk.name == "PLTE") {
    read_palette(chunk);
  } else if (!chunk.ancillary()) {
    doubt("unknown critical chunk " + std::string(chunk.name));
  } else {
    read_metadata(chunk);
  }
}

void Inspector::finish() {
  ended_ = true;
  if (!has_pixels_) doubt("no image data");
  if (orientation_ == ExifOrientation::kApplied) {
    doubt(std::string(metadata_orientation_.doubt()));
  }
}

void Inspector::read_palette(const Chunk& chunk) {
  if (palette_size_ != 0 || has_pixels_) return doubt("a palette too many");
  palette_size_ = chunk.data.size() / 3;
  if (palette_size_ == 0 || palette_size_ > 256 || chunk.data.size() % 3 != 0) {
    doubt("bad palette size");
  }
}

/// The pixels don't depend on it, since convert("RGB") drops transparency; but Pillow converts the
/// transparent color too, or warns that it can't.
void Inspector::read_transparency(const Chunk& chunk) {
  if (has_pixels_) return doubt("transparency after the image data");
  const std::size_t size = chunk.data.size();
  const auto is_byte = [&](std::size_t at) { return chunk.data[at] == 0; };  // of 16 bits
  switch (color_type_) {
    case 0:
      if (size < 2 || !is_byte(0)) doubt("irregular transparency");
      return;
    case 2:
      if (size < 6 || !is_byte(0) || !is_byte(2) || !is_byte(4)) doubt("irregular transparency");
      return;
    case 3: {
      const auto clear = std::ranges::count(chunk.data, 0);
      const auto opaque = std::ranges::count(chunk.data, 0xFF);
      if (clear != 1 || static_cast<std::size_t>(clear + opaque) != size || size > palette_size_) {
        doubt("a palette with alpha, of which Pillow warns");
      }
      return;
    }
    default:
      return;
  }
}

void Inspector::read_metadata(const Chunk& chunk) {
  const auto shorter_than = [&](std::size_t size) {
    if (chunk.data.size() < size) doubt(std::string(chunk.name) + " is too short");
  };
  const std::string_view name = chunk.name;
  const std::string_view data = text_of(chunk.data);
  if (name == "tRNS") {
    read_transparency(chunk);
  } else if (name == "gAMA") {
    shorter_than(4);
  } else if (name == "cHRM") {
    shorter_than(32);
  } else if (name == "sRGB") {
    shorter_than(1);
  } else if (name == "pHYs") {
    shorter_than(9);
  } else if (name == "acTL" || name == "fcTL" || name == "fdAT") {
    doubt("an animation");
  } else if (name == "iCCP") {
    const std::size_t end = data.find('\0');
    if (end == data.npos || end + 1 >= data.size() || data[end + 1] != 0) {
      return doubt("irregular color profile");
    }
    count_metadata(inflated_size(chunk.data.subspan(end + 2), kMetadataLimit));
  } else if (name == "eXIf") {
    metadata_orientation_.add_exif(chunk.data);
  } else if (name == "tEXt" || name == "zTXt" || name == "iTXt") {
    read_text(name, data);
  }
}

void Inspector::read_text(std::string_view name, std::string_view data) {
  const std::size_t end = data.find('\0');
  const std::string_view key = data.substr(0, end);
  // Pillow keeps texts beside what it knows of the image, under their own keys.
  for (const auto taken : {"transparency", "interlace", "bbox"}) {
    if (key == taken) return doubt("a text named " + std::string(key));
  }
  const bool is_xmp = name == "iTXt" && key == "XML:com.adobe.xmp";
  if (is_xmp) {
    metadata_orientation_.add_xmp(
        Bytes(reinterpret_cast<const std::uint8_t*>(data.data()), data.size()));
  } else if (orientation_ == ExifOrientation::kApplied) {
    for (const auto taken : {"exif", "xmp", "Raw profile type exif", "XML:com.adobe.xmp"}) {
      if (key == taken) return doubt("EXIF or XMP in a text");
    }
  }
  count_metadata(data.size());
  if (name == "tEXt" || end == data.npos) return;

  // zTXt: method, stream. iTXt: flag, method, language, translated key, text or stream.
  std::string_view rest = data.substr(end + 1);
  if (name == "zTXt") {
    if (rest.empty()) return;
    if (rest.front() != 0) return doubt("unknown compression of a text");
    rest.remove_prefix(1);
  } else {
    if (rest.size() < 2 || rest[0] == 0) return;
    rest.remove_prefix(2);
    for (int skipped = 0; skipped < 2; ++skipped) {
      const std::size_t separator = rest.find('\0');
      if (separator == rest.npos) return;
      rest.remove_prefix(separator + 1);
    }
    if (is_xmp && orientation_ == ExifOrientation::kApplied) {
      return doubt("compressed XMP");
    }
  }
  count_metadata(inflated_size(
      Bytes(reinterpret_cast<const std::uint8_t*>(rest.data()), rest.size()), kMetadataLimit));
}

}  // namespace

bool looks_like_png(std::span<const std::byte> file) {
  return std::string_view(reinterpret_cast<const char*>(file.data()), file.size())
      .starts_with(kSignature);
}

std::variant<ImageSize, Doubt> inspect_png(std::span<const std::byte> file,
                                           std::uint64_t pixel_limit, ExifOrientation orientation) {
  const Bytes bytes(reinterpret_cast<const std::uint8_t*>(file.data()), file.size());
  return Inspector(bytes, pixel_limit, orientation).run();
}

PngParts png_parts(std::span<const std::byte> file) {
  const Bytes bytes(reinterpret_cast<const std::uint8_t*>(file.data()), file.size());
  constexpr std::size_t kStart = kSignature.size() + kChunkOverhead + kHeaderSize;
  PngParts parts{file.first(kStart)};
  Bytes rest = bytes.subspan(kStart);
  while (const auto chunk = take_chunk(rest)) {
    const std::size_t size = chunk->data.size() + kChunkOverhead;
    const auto whole = file.subspan(file.size() - rest.size() - size, size);
    if (chunk->name == "PLTE") {
      // In other files it is a mere suggestion; Pillow passes over it.
      constexpr std::size_t kColorType = 25;
      if (bytes[kColorType] == 3) parts[1] = whole;
    } else if (chunk->name == "IDAT") {
      parts[2] = {parts[2].empty() ? whole.data() : parts[2].data(), parts[2].size() + size};
    } else if (chunk->name == "IEND") {
      parts[3] = whole;
      break;
    }
  }
  return parts;
}

}  // namespace headrace
