#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "flat_jpeg.h"
#include "flat_png.h"
#include "headrace/error.h"
#include "headrace/image.h"
#include "png_file.h"
#include "support.h"

namespace headrace {
namespace {

using test::contains;
using test::flat_jpeg;
using test::flat_png;
using test::png_chunk;

constexpr std::uint64_t kNoLimit = ~std::uint64_t{0};

std::vector<std::byte> bytes_of(const std::string& text) {
  const auto* bytes = reinterpret_cast<const std::byte*>(text.data());
  return {bytes, bytes + text.size()};
}

std::string doubt_about(const std::vector<std::byte>& file,
                        ExifOrientation orientation = ExifOrientation::kIgnored) {
  const auto found = inspect_image(file, kNoLimit, orientation);
  const auto* doubt = std::get_if<Doubt>(&found);
  return doubt == nullptr ? "" : doubt->reason;
}

std::vector<std::uint8_t> decode(const std::vector<std::byte>& file,
                                 const std::optional<Region>& region = {}) {
  RgbImage image;
  ImageDecoder().decode(file, std::get<ImageInfo>(inspect_image(file, kNoLimit)), region, image);
  return image.pixels;
}

TEST_CASE("an image's format is told by its content", "[image]") {
  const auto jpeg = std::get<ImageInfo>(inspect_image(flat_jpeg(9, 7, 100), kNoLimit));
  CHECK(jpeg.format == ImageFormat::kJpeg);
  CHECK(jpeg.size == ImageSize{9, 7});
  const auto png = std::get<ImageInfo>(inspect_image(flat_png(5, 3, 100), kNoLimit));
  CHECK(png.format == ImageFormat::kPng);
  CHECK(png.size == ImageSize{5, 3});
}

TEST_CASE("formats that are not decoded here are named", "[image]") {
  CHECK(doubt_about(bytes_of("GIF89a...")) == "a GIF file");
  CHECK(doubt_about(bytes_of("RIFF....WEBP")) == "a WebP file");
  CHECK(doubt_about(bytes_of("P6\n1 1\n255\nabc")) == "a PNM file");
  CHECK(doubt_about(bytes_of("this is text")) == "neither a JPEG nor a PNG file");
  CHECK(doubt_about({}) == "neither a JPEG nor a PNG file");
}

TEST_CASE("one decoder takes one format after another", "[image]") {
  ImageDecoder decoder;
  RgbImage image;
  for (int i = 0; i < 3; ++i) {
    for (const auto& file : {flat_jpeg(8, 8, 40), flat_png(5, 4, 40)}) {
      decoder.decode(file, std::get<ImageInfo>(inspect_image(file, kNoLimit)), {}, image);
      CHECK(std::ranges::count(image.pixels, 40) == static_cast<long>(image.pixels.size()));
    }
  }
}

TEST_CASE("a region of pixels in memory is copied out", "[image]") {
  std::vector<std::byte> pixels;
  for (int i = 0; i < 4 * 3 * 3; ++i) pixels.push_back(static_cast<std::byte>(i));
  RgbImage image;
  const ImageInfo info{ImageFormat::kRgbPixels, {4, 3}};
  ImageDecoder().decode(pixels, info, Region{.left = 1, .top = 2, .width = 2, .height = 1}, image);
  CHECK(image.pixels == std::vector<std::uint8_t>{27, 28, 29, 30, 31, 32});
  ImageDecoder().decode(pixels, info, {}, image);
  CHECK(std::memcmp(image.pixels.data(), pixels.data(), pixels.size()) == 0);
  CHECK_THROWS_AS(ImageDecoder().decode(pixels, info, Region{3, 0, 2, 1}, image), Error);
}

TEST_CASE("gray pixels in memory become red, green and blue", "[image]") {
  std::vector<std::byte> pixels;
  for (int i = 0; i < 4 * 3; ++i) pixels.push_back(static_cast<std::byte>(i));
  RgbImage image;
  const ImageInfo info{ImageFormat::kGrayPixels, {4, 3}};
  ImageDecoder().decode(pixels, info, Region{.left = 1, .top = 2, .width = 2, .height = 1}, image);
  CHECK(image.pixels == std::vector<std::uint8_t>{9, 9, 9, 10, 10, 10});
  CHECK_THROWS_AS(ImageDecoder().decode(pixels, info, Region{3, 0, 2, 1}, image), Error);
}

TEST_CASE("a region of a PNG file is that part of the whole", "[image]") {
  std::string rows;
  for (char y = 0; y < 3; ++y) {
    rows += '\0';
    for (char x = 0; x < 4; ++x) rows += {x, y, 9};
  }
  const auto file = bytes_of(test::png_header(4, 3) + test::png_data(rows) + png_chunk("IEND", ""));
  CHECK(decode(file, Region{.left = 2, .top = 1, .width = 2, .height = 2}) ==
        std::vector<std::uint8_t>{2, 1, 9, 3, 1, 9, 2, 2, 9, 3, 2, 9});
  CHECK_THROWS_AS(decode(file, Region{3, 0, 2, 1}), Error);
}

TEST_CASE("a PNG file that is cut off anywhere is doubtful", "[image]") {
  const auto file = flat_png(5, 4, 7);
  for (std::size_t size = 0; size < file.size(); ++size) {
    CHECK_FALSE(doubt_about({file.begin(), file.begin() + static_cast<long>(size)}).empty());
  }
}

TEST_CASE("damage in a PNG file's image data is found when decoding, below the region too",
          "[image]") {
  auto file = flat_png(5, 4, 7);
  file[file.size() - 12 - 4 - 4 - 1] ^= std::byte{1};  // the last pixel
  REQUIRE(doubt_about(file).empty());
  CHECK_THROWS_WITH(decode(file, Region{0, 0, 1, 1}), contains("decode: "));
}

TEST_CASE("what a PNG file has beside its pixels is not decoded", "[image]") {
  const auto file = flat_png(2, 1, 7, png_chunk("PLTE", "abcdef") + png_chunk("tEXt", "a"));
  const PngParts parts = png_parts(file);
  CHECK(parts[0].size() == 33);
  CHECK(parts[1].empty());
  CHECK(parts[3].size() == 12);
  CHECK(decode(file) == std::vector<std::uint8_t>(6, 7));
}

TEST_CASE("texts that Pillow would take for properties of the image are doubtful", "[image]") {
  using namespace std::string_literals;
  CHECK_THAT(doubt_about(flat_png(2, 1, 7, png_chunk("tEXt", "transparency\0x"s))),
             contains("transparency"));
  CHECK(doubt_about(flat_png(2, 1, 7, png_chunk("tEXt", "title\0x"s))).empty());
  CHECK(doubt_about(flat_png(2, 1, 7, png_chunk("tEXt", "x"))).empty());
}

TEST_CASE("an orientation is a doubt where it is applied", "[image]") {
  using namespace std::string_literals;
  const auto with = [](char orientation) {
    return flat_png(2, 1, 7,
                    png_chunk("eXIf", "MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0"s +
                                          orientation + "\0\0\0\0\0\0"s));
  };
  for (const char orientation : {'\0', '\1', '\x09'}) {
    CHECK(doubt_about(with(orientation), ExifOrientation::kApplied).empty());
  }
  for (char orientation = 2; orientation <= 8; ++orientation) {
    CHECK(doubt_about(with(orientation)).empty());
    CHECK_THAT(doubt_about(with(orientation), ExifOrientation::kApplied), contains("turned"));
  }
}

}  // namespace
}  // namespace headrace
