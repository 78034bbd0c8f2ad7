#include <algorithm>
#include <array>
#include <cstring>
#include <string_view>

#include "headrace/error.h"
#include "headrace/image.h"
#include "headrace/jpeg.h"
#include "png_file.h"

namespace headrace {
namespace {

using namespace std::string_view_literals;

constexpr std::size_t kRgbChannels = 3;

struct Foreign {
  std::string_view start;
  std::string_view name;
};

// For messages only: Pillow decides what it is.
constexpr std::array<Foreign, 9> kForeign = {{{"GIF8"sv, "GIF"sv},
                                              {"BM"sv, "BMP"sv},
                                              {"II*\0"sv, "TIFF"sv},
                                              {"MM\0*"sv, "TIFF"sv},
                                              {"RIFF"sv, "WebP"sv},
                                              {"P4"sv, "PNM"sv},
                                              {"P5"sv, "PNM"sv},
                                              {"P6"sv, "PNM"sv},
                                              {"\0\0\0"sv, "HEIF or AVIF"sv}}};

std::string foreign_format(std::string_view file) {
  const auto found = std::ranges::find_if(
      kForeign, [file](const Foreign& format) { return file.starts_with(format.start); });
  if (found == kForeign.end()) return "neither a JPEG nor a PNG file";
  return "a " + std::string(found->name) + " file";
}

void copy_region(std::span<const std::byte> pixels, ImageSize size, const Region& region,
                 RgbImage& out) {
  out.reshape(region.size());
  const std::size_t row_bytes = static_cast<std::size_t>(size.width) * kRgbChannels;
  const std::size_t left = static_cast<std::size_t>(region.left) * kRgbChannels;
  const std::size_t stride = static_cast<std::size_t>(region.width) * kRgbChannels;
  for (int y = 0; y < region.height; ++y) {
    const std::byte* row =
        pixels.data() + static_cast<std::size_t>(region.top + y) * row_bytes + left;
    std::memcpy(out.pixels.data() + static_cast<std::size_t>(y) * stride, row, stride);
  }
}

void copy_gray_region(std::span<const std::byte> pixels, ImageSize size, const Region& region,
                      RgbImage& out) {
  out.reshape(region.size());
  std::uint8_t* to = out.pixels.data();
  for (int y = region.top; y < region.top + region.height; ++y) {
    const std::byte* row =
        pixels.data() + static_cast<std::size_t>(y) * static_cast<std::size_t>(size.width);
    for (int x = region.left; x < region.left + region.width; ++x, to += kRgbChannels) {
      to[0] = to[1] = to[2] = static_cast<std::uint8_t>(row[x]);
    }
  }
}

}  // namespace

bool Region::inside(ImageSize image) const noexcept {
  return left >= 0 && top >= 0 && width > 0 && height > 0 && width <= image.width - left &&
         height <= image.height - top;
}

Region Region::in(ImageSize image, const std::optional<Region>& wanted) {
  const Region region = wanted.value_or(whole(image));
  if (!region.inside(image)) {
    throw Error(ErrorCode::kInvalidArgument, "a region that is not part of the image",
                {.stage = "decode"});
  }
  return region;
}

void RgbImage::reshape(ImageSize new_size) {
  size = new_size;
  pixels.resize(static_cast<std::size_t>(size.width) * static_cast<std::size_t>(size.height) *
                kRgbChannels);
}

std::variant<ImageInfo, Doubt> inspect_image(std::span<const std::byte> file,
                                             std::uint64_t pixel_limit,
                                             ExifOrientation orientation) {
  const std::string_view text(reinterpret_cast<const char*>(file.data()), file.size());
  ImageFormat format = ImageFormat::kJpeg;
  std::variant<ImageSize, Doubt> found;
  if (text.starts_with("\xFF\xD8\xFF"sv)) {
    found = inspect_jpeg(file, pixel_limit, orientation);
  } else if (looks_like_png(file)) {
    format = ImageFormat::kPng;
    found = inspect_png(file, pixel_limit, orientation);
  } else {
    return Doubt{foreign_format(text)};
  }
  if (auto* doubt = std::get_if<Doubt>(&found)) return std::move(*doubt);
  return ImageInfo{format, std::get<ImageSize>(found)};
}

struct ImageDecoder::Impl {
  JpegDecoder jpeg;
  PngDecoder png;
};

ImageDecoder::ImageDecoder() : impl_(std::make_unique<Impl>()) {}
ImageDecoder::~ImageDecoder() = default;
ImageDecoder::ImageDecoder(ImageDecoder&&) noexcept = default;
ImageDecoder& ImageDecoder::operator=(ImageDecoder&&) noexcept = default;

void ImageDecoder::decode(std::span<const std::byte> file, const ImageInfo& image,
                          const std::optional<Region>& region, RgbImage& out) {
  switch (image.format) {
    case ImageFormat::kJpeg:
      return impl_->jpeg.decode(file, region, out);
    case ImageFormat::kPng:
      return impl_->png.decode(file, region, out);
    case ImageFormat::kRgbPixels:
      return copy_region(file, image.size, Region::in(image.size, region), out);
    case ImageFormat::kGrayPixels:
      return copy_gray_region(file, image.size, Region::in(image.size, region), out);
  }
}

}  // namespace headrace
