// Image files, or pixels that are in memory, to RGB pixels: Pillow's, bit for bit, or a doubt.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "headrace/api.h"

namespace HEADRACE_API headrace {

struct ImageSize {
  int width = 0;
  int height = 0;
  bool operator==(const ImageSize&) const = default;
};

/// The pixels [left, left + width) x [top, top + height) of an image.
struct Region {
  int left = 0;
  int top = 0;
  int width = 0;
  int height = 0;

  static Region whole(ImageSize size) { return {0, 0, size.width, size.height}; }
  ImageSize size() const { return {width, height}; }
  /// Whether it is a part, with at least one pixel, of an image of this size.
  bool inside(ImageSize image) const noexcept;
  /// `wanted`, or the whole of an image of this size.
  /// @throws Error{kInvalidArgument}: it does not lie inside.
  static Region in(ImageSize image, const std::optional<Region>& wanted);
  bool operator==(const Region&) const = default;
};

/// 8-bit RGB, interleaved, rows without padding: shape [height, width, 3].
struct RgbImage {
  ImageSize size;
  std::vector<std::uint8_t> pixels;

  /// Sets the size; keeps the memory when it suffices. The pixels are then unspecified.
  void reshape(ImageSize new_size);
};

/// Why a file is left to Pillow, in words for people ("no end-of-image marker").
struct Doubt {
  std::string reason;
};

enum class ImageFormat {
  kJpeg,
  kPng,
  kRgbPixels,   ///< no file at all: uint8 RGB, shape [height, width, 3]
  kGrayPixels,  ///< the same of one channel, shape [height, width]
};

/// What an EXIF orientation does: nothing in torchvision's image folders, whereas Hugging Face's
/// datasets turn the image. To turn it is Pillow's work: such an image is doubtful.
enum class ExifOrientation { kIgnored, kApplied };

/// What is known of an image before it is decoded.
struct ImageInfo {
  ImageFormat format = ImageFormat::kJpeg;
  ImageSize size;
};

/// Finds the format by content, never by name, and judges the file by that format's rules, without
/// decoding it. Whatever Pillow might refuse or read otherwise than we do is a doubt, and so is
/// every format that is not decoded here.
/// @param file         whole compressed file; borrowed for the call.
/// @param pixel_limit  more pixels than this are doubtful (Pillow's MAX_IMAGE_PIXELS).
/// Cheap beside decoding. Never blocks, never throws on data.
std::variant<ImageInfo, Doubt> inspect_image(
    std::span<const std::byte> file, std::uint64_t pixel_limit,
    ExifOrientation orientation = ExifOrientation::kIgnored);

/// Decodes what inspect_image() accepted. One decoder per thread.
class ImageDecoder {
 public:
  ImageDecoder();
  ~ImageDecoder();
  ImageDecoder(ImageDecoder&&) noexcept;
  ImageDecoder& operator=(ImageDecoder&&) noexcept;

  /// Decodes one region as Pillow's `Image.open(f).convert("RGB").crop(region)` would.
  /// @param file    what inspect_image() saw, or pixels; borrowed for the call.
  /// @param image   what it found.
  /// @param region  of the image; the whole of it when absent.
  /// @param out     reshaped and overwritten; unspecified after an error.
  /// @throws Error{kDoubtfulData}: the data is damaged, so that Pillow must decide.
  /// @throws Error{kInvalidArgument}: the region does not lie inside the image.
  void decode(std::span<const std::byte> file, const ImageInfo& image,
              const std::optional<Region>& region, RgbImage& out);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace headrace
