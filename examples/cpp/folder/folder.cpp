// Goes through a folder of images, one folder for each class, as a training would:
//   folder DIR [EPOCHS]
#include <headrace/loader.h>
#include <headrace/version.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <memory>

namespace {

constexpr const char* kTransform = R"({"headrace": 1, "ops": [
    {"op": "random_resized_crop", "size": [224, 224]},
    {"op": "random_horizontal_flip"},
    {"op": "to_tensor"},
    {"op": "normalize", "mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]}]})";

/// FNV-1a, over the bits of the images: equal in each run, whatever the number of threads.
void add_to_checksum(std::uint64_t& checksum, const headrace::Batch& batch) {
  for (const std::uint32_t bits : batch.values<std::uint32_t>("image")) {
    checksum = (checksum ^ bits) * 0x100000001b3;
  }
}

void run(const char* dir, int epochs) {
  const auto folder = std::make_shared<headrace::ImageFolderSource>(dir);
  std::printf("headrace %s: %lld images, %zu classes:", headrace::version(),
              static_cast<long long>(folder->size()), folder->classes().size());
  for (const auto& name : folder->classes()) std::printf(" %s", name.c_str());
  std::printf("\n");

  headrace::Loader loader(folder, headrace::Transform::from_json(kTransform),
                          {.batch_size = 64, .shuffle = true, .seed = 1});
  for (int epoch = 0; epoch < epochs; ++epoch) {
    const auto start = std::chrono::steady_clock::now();
    std::uint64_t checksum = 0xcbf29ce484222325;
    std::int64_t images = 0;
    for (const headrace::Batch& batch : loader) {
      images += batch.rows;
      add_to_checksum(checksum, batch);
    }
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    std::printf("epoch %d: %lld images, %.0f images/s, checksum %016llx\n", epoch,
                static_cast<long long>(images), static_cast<double>(images) / seconds.count(),
                static_cast<unsigned long long>(checksum));
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: folder DIR [EPOCHS]\n");
    return 2;
  }
  try {
    run(argv[1], argc > 2 ? std::atoi(argv[2]) : 1);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "folder: %s\n", error.what());
    return 1;
  }
}
