// The training's own preprocessing in a program without Python:
//   serve TRANSFORM.json IMAGE.jpg [SEED] > field
//
// In the training: Path("TRANSFORM.json").write_text(headrace.transform_to_json(transform)). The
// field, raw numbers of the shape that goes to stderr, equals transform(image) bit for bit; with
// random transforms, after torch.manual_seed(SEED).
#include <headrace/random.h>
#include <headrace/transform.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <iterator>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

std::string read(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) throw std::runtime_error("cannot read " + path);
  return {std::istreambuf_iterator<char>(in), {}};
}

void run(const char* recipe, const char* image, std::uint64_t seed) {
  const auto transform = headrace::Transform::from_json(read(recipe));
  const std::string file = read(image);
  headrace::RandomStream random(seed);
  std::vector<std::byte> field(transform.output().row_bytes());
  transform.apply(std::as_bytes(std::span(file)), random, field);

  std::fprintf(stderr, "shape");
  for (const auto length : transform.output().shape) {
    std::fprintf(stderr, " %lld", static_cast<long long>(length));
  }
  std::fprintf(stderr, "\n");
  std::fwrite(field.data(), 1, field.size(), stdout);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) {
    std::fprintf(stderr, "usage: serve TRANSFORM.json IMAGE.jpg [SEED] > field\n");
    return 2;
  }
  try {
    run(argv[1], argv[2], argc > 3 ? std::strtoull(argv[3], nullptr, 10) : 0);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "serve: %s\n", error.what());
    return 1;
  }
}
