#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "headrace/error.h"
#include "jpeg_decoder.h"
#include "support.h"

// jpeglib.h wants size_t and FILE declared before it.
#include <jpeglib.h>

using headrace::EntropyPath;
using headrace::ImageSize;
using headrace::Region;

namespace {

constexpr std::uint64_t kPixelLimit = 1 << 24;

using Bytes = std::vector<std::uint8_t>;
using Random = std::mt19937;

int draw(Random& random, int below) {
  return std::uniform_int_distribution<int>(0, below - 1)(random);
}

struct Encoding {
  int width = 100;
  int height = 70;
  int components = 3;
  int horizontal = 1;  ///< sampling factors of the first component
  int vertical = 1;
  int quality = 90;
  unsigned restart_interval = 0;  ///< MCUs
  bool optimized = false;
  int noise = 255;
};

/// Noise in all coefficients, on a slope.
Bytes encode(const Encoding& encoding, Random& random) {
  jpeg_compress_struct info{};
  jpeg_error_mgr errors{};
  info.err = jpeg_std_error(&errors);
  jpeg_create_compress(&info);
  unsigned char* memory = nullptr;
  unsigned long size = 0;
  jpeg_mem_dest(&info, &memory, &size);
  info.image_width = static_cast<JDIMENSION>(encoding.width);
  info.image_height = static_cast<JDIMENSION>(encoding.height);
  info.input_components = encoding.components;
  info.in_color_space = encoding.components == 1   ? JCS_GRAYSCALE
                        : encoding.components == 3 ? JCS_RGB
                                                   : JCS_CMYK;
  jpeg_set_defaults(&info);
  jpeg_set_quality(&info, encoding.quality, TRUE);
  info.comp_info[0].h_samp_factor = encoding.horizontal;
  info.comp_info[0].v_samp_factor = encoding.vertical;
  info.restart_interval = encoding.restart_interval;
  info.optimize_coding = encoding.optimized ? TRUE : FALSE;
  jpeg_start_compress(&info, TRUE);
  Bytes row(static_cast<std::size_t>(encoding.width * encoding.components));
  for (int y = 0; y < encoding.height; ++y) {
    for (std::size_t x = 0; x < row.size(); ++x) {
      row[x] =
          static_cast<std::uint8_t>(y + static_cast<int>(x) / 4 + draw(random, encoding.noise + 1));
    }
    JSAMPROW rows[] = {row.data()};
    jpeg_write_scanlines(&info, rows, 1);
  }
  jpeg_finish_compress(&info);
  jpeg_destroy_compress(&info);
  Bytes file(memory, memory + size);
  std::free(memory);
  return file;
}

Region some_region(ImageSize image, Random& random) {
  const int width = 1 + draw(random, image.width);
  const int height = 1 + draw(random, image.height);
  return {draw(random, image.width - width + 1), draw(random, image.height - height + 1), width,
          height};
}

struct Decoded {
  EntropyPath path;
  std::string error;
  headrace::RgbImage image;
};

Decoded decode(headrace::RegionDecoder& decoder, std::span<const std::byte> file,
               const std::optional<Region>& region, EntropyPath path) {
  Decoded decoded{path, "", {}};
  try {
    decoded.path = decoder.decode(file, region, decoded.image, path);
  } catch (const headrace::Error& error) {
    decoded.error = error.what();
    decoded.image = {};
  }
  return decoded;
}

/// Compares both ways, and says which was the one taken.
EntropyPath compare(headrace::RegionDecoder& decoder, const Bytes& file,
                    const std::optional<Region>& region) {
  const auto bytes = std::as_bytes(std::span(file));
  const Decoded own = decode(decoder, bytes, region, EntropyPath::kOwn);
  const Decoded plain = decode(decoder, bytes, region, EntropyPath::kLibjpeg);
  REQUIRE(plain.path == EntropyPath::kLibjpeg);
  REQUIRE(own.error == plain.error);
  REQUIRE(own.image.pixels == plain.image.pixels);
  return own.path;
}

std::string describe(const std::optional<Region>& region) {
  if (!region) return "whole";
  return std::to_string(region->left) + "," + std::to_string(region->top) + " " +
         std::to_string(region->width) + "x" + std::to_string(region->height);
}

void compare_regions(headrace::RegionDecoder& decoder, const Bytes& file, ImageSize size,
                     int region_count, Random& random) {
  REQUIRE(compare(decoder, file, std::nullopt) == EntropyPath::kOwn);
  for (int i = 0; i < region_count; ++i) {
    const Region region = some_region(size, random);
    CAPTURE(describe(region));
    REQUIRE(compare(decoder, file, region) == EntropyPath::kOwn);
  }
}

/// Where the entropy-coded data begin.
std::size_t scan_start(const Bytes& file) {
  std::size_t at = 2;
  while (file[at + 1] != 0xDA) at += 2 + (std::size_t{file[at + 2]} << 8 | file[at + 3]);
  return at + 2 + (std::size_t{file[at + 2]} << 8 | file[at + 3]);
}

/// Compares if inspection lets the file pass, as the loader does.
void compare_damaged(headrace::RegionDecoder& decoder, const Bytes& file, Random& random,
                     int& own_count, int& libjpeg_count) {
  const auto found = headrace::inspect_jpeg(std::as_bytes(std::span(file)), kPixelLimit);
  const auto* size = std::get_if<ImageSize>(&found);
  if (size == nullptr) return;
  const bool whole = draw(random, 2) == 0;
  const std::optional<Region> region =
      whole ? std::nullopt : std::optional(some_region(*size, random));
  CAPTURE(describe(region));
  ++(compare(decoder, file, region) == EntropyPath::kOwn ? own_count : libjpeg_count);
}

}  // namespace

TEST_CASE("the libjpeg at hand takes the decoder", "[jpeg_entropy]") {
  REQUIRE(headrace::RegionDecoder::has_own_path());
}

TEST_CASE("every sampling, quality and size gives libjpeg's pixels", "[jpeg_entropy]") {
  Random random(1);
  headrace::RegionDecoder decoder;
  for (const int components : {1, 3, 4}) {
    for (const int horizontal : {1, 2, 4}) {
      for (const int vertical : {1, 2, 4}) {
        if (horizontal * vertical > (components == 3 ? 8 : 4)) continue;  // too many for an MCU
        for (const int quality : {5, 60, 100}) {
          const Encoding encoding{.width = 1 + draw(random, 150),
                                  .height = 1 + draw(random, 150),
                                  .components = components,
                                  .horizontal = horizontal,
                                  .vertical = vertical,
                                  .quality = quality,
                                  .optimized = draw(random, 2) == 0,
                                  .noise = draw(random, 256)};
          CAPTURE(components, horizontal, vertical, quality, encoding.width, encoding.height);
          compare_regions(decoder, encode(encoding, random), {encoding.width, encoding.height}, 5,
                          random);
        }
      }
    }
  }
}

TEST_CASE("restart markers may stand anywhere", "[jpeg_entropy]") {
  Random random(2);
  headrace::RegionDecoder decoder;
  for (const int sampling : {1, 2}) {
    for (const unsigned interval : {1U, 2U, 3U, 7U, 13U, 50U, 51U, 65535U}) {
      const Encoding encoding{.horizontal = sampling,
                              .vertical = sampling,
                              .restart_interval = interval,
                              .optimized = sampling == 1};
      CAPTURE(sampling, interval);
      compare_regions(decoder, encode(encoding, random), {encoding.width, encoding.height}, 10,
                      random);
    }
  }
}

TEST_CASE("tables are not mixed up between files", "[jpeg_entropy]") {
  Random random(3);
  headrace::RegionDecoder decoder;
  std::vector<Bytes> files;
  for (int i = 0; i < 6; ++i) {
    files.push_back(encode(
        {.components = i % 2 == 0 ? 3 : 1, .quality = 30 + 10 * i, .optimized = i != 2}, random));
  }
  for (int i = 0; i < 40; ++i) {
    const Bytes& file = files[static_cast<std::size_t>(draw(random, 6))];
    REQUIRE(compare(decoder, file, some_region({100, 70}, random)) == EntropyPath::kOwn);
  }
}

TEST_CASE("damaged data have libjpeg's verdict and pixels", "[jpeg_entropy]") {
  Random random(4);
  headrace::RegionDecoder decoder;
  int own_count = 0;
  int libjpeg_count = 0;
  for (int i = 0; i < 5000; ++i) {
    CAPTURE(i);
    const int sampling = 1 + draw(random, 2);
    Bytes file =
        encode({.width = 1 + draw(random, 90),
                .height = 1 + draw(random, 90),
                .horizontal = sampling,
                .vertical = sampling,
                .quality = 20 + draw(random, 80),
                .restart_interval = static_cast<unsigned>(draw(random, 2) * draw(random, 9)),
                .optimized = draw(random, 2) == 0,
                .noise = draw(random, 100)},
               random);
    const std::size_t start = scan_start(file);
    const int length = static_cast<int>(file.size() - 2 - start);
    const auto at = [&] { return start + static_cast<std::size_t>(draw(random, length)); };
    switch (draw(random, 4)) {
      case 0:  // a bit
        file[at()] ^= static_cast<std::uint8_t>(1 << draw(random, 8));
        break;
      case 1: {  // bytes are missing
        const auto from = file.begin() + static_cast<std::ptrdiff_t>(at());
        file.erase(from, std::min(from + 1 + draw(random, 20), file.end() - 2));
        break;
      }
      case 2:  // bytes too many, often at the end
        file.insert(draw(random, 2) == 0 ? file.end() - 2
                                         : file.begin() + static_cast<std::ptrdiff_t>(at()),
                    static_cast<std::size_t>(1 + draw(random, 20)),
                    static_cast<std::uint8_t>(draw(random, 255)));
        break;
      default:  // another Huffman table, or quantization table
        file[static_cast<std::size_t>(20 + draw(random, static_cast<int>(start) - 20))] ^=
            static_cast<std::uint8_t>(1 << draw(random, 8));
    }
    compare_damaged(decoder, file, random, own_count, libjpeg_count);
  }
  REQUIRE(own_count > 1000);
  REQUIRE(libjpeg_count > 200);
}

/// By hand: HEADRACE_CORPUS=FOLDER test_jpeg_entropy "[corpus]", with any number of rounds.
TEST_CASE("files of a folder have libjpeg's pixels and verdict", "[.corpus]") {
  const char* folder = std::getenv("HEADRACE_CORPUS");
  const char* rounds = std::getenv("HEADRACE_ROUNDS");
  REQUIRE(folder != nullptr);
  Random random(5);
  headrace::RegionDecoder decoder;
  int own_count = 0;
  int libjpeg_count = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    if (!entry.is_regular_file()) continue;
    CAPTURE(entry.path());
    std::ifstream in(entry.path(), std::ios::binary);
    const Bytes file{std::istreambuf_iterator<char>(in), {}};
    for (int i = 0; i < (rounds != nullptr ? std::atoi(rounds) : 1); ++i) {
      compare_damaged(decoder, file, random, own_count, libjpeg_count);
      Bytes damaged = file;
      for (int j = 1 + draw(random, 3); j > 0 && !file.empty(); --j) {
        damaged[static_cast<std::size_t>(draw(random, static_cast<int>(file.size())))] ^=
            static_cast<std::uint8_t>(1 << draw(random, 8));
      }
      compare_damaged(decoder, damaged, random, own_count, libjpeg_count);
    }
  }
  std::printf("%d decoded, %d left to libjpeg\n", own_count, libjpeg_count);
}
