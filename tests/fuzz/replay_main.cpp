// Runs a fuzz target without libFuzzer: over the seeds, and over random changes of them.
//   hone_fuzz_rows [--mutations N] [--seed S] FILE_OR_FOLDER...
// The input at work lies in a file of its own, which stays behind when it ends the program.
#include <algorithm>
#include <charconv>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "core/base/philox.h"
#include "fuzz_input.h"

namespace hone {
namespace {

namespace fs = std::filesystem;

std::string read_file(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::vector<std::string> read_seeds(const std::vector<std::string>& paths) {
  std::vector<fs::path> files;
  for (const fs::path path : paths) {
    if (!fs::is_directory(path)) {
      files.push_back(path);
      continue;
    }
    for (const auto& entry : fs::directory_iterator(path)) files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  std::vector<std::string> seeds;
  for (const fs::path& file : files) seeds.push_back(read_file(file));
  return seeds;
}

/// A few changes: bytes, stretches taken out, repeated, or put in from another seed, and the end cut off.
std::string mutated(const std::vector<std::string>& seeds, PhiloxSequence& random) {
  std::string text = seeds[random.below(seeds.size())];
  const auto place = [&](const std::string& in) { return static_cast<size_t>(random.below(in.size() + 1)); };
  for (uint64_t changes = 1 + random.below(4); changes > 0; --changes) {
    const size_t at = place(text), length = random.below(1 + std::min<size_t>(64, text.size() - at));
    const std::string& other = seeds[random.below(seeds.size())];
    const size_t from = place(other);
    switch (random.below(6)) {
      case 0:
        if (at < text.size()) text[at] = static_cast<char>(random.below(256));
        break;
      case 1:
        text.erase(at, length);
        break;
      case 2:
        text.insert(at, text.substr(at, length));
        break;
      case 3:
        text.insert(at, other.substr(from, random.below(64)));
        break;
      case 4:
        text.insert(at, 1, "{}[]\"\\,:0-\n\xff"[random.below(12)]);
        break;
      default:
        if (random.below(8) == 0) text.resize(at);
    }
  }
  return text;
}

class Replay {
 public:
  void run(const std::string& input) {
    at_work_.write(input);
    LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(input.data()), input.size());
    ++runs_;
  }
  int64_t runs() const { return runs_; }
  const fs::path& path() const { return at_work_.path(); }

 private:
  InputFile at_work_{"input"};
  int64_t runs_ = 0;
};

}  // namespace
}  // namespace hone

int main(int argc, char** argv) {
  uint64_t mutations = 0, seed = 1;
  std::vector<std::string> paths;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if ((word == "--mutations" || word == "--seed") && i + 1 < argc) {
      const std::string number = argv[++i];
      std::from_chars(number.data(), number.data() + number.size(), word == "--seed" ? seed : mutations);
    } else {
      paths.push_back(word);
    }
  }
  const std::vector<std::string> seeds = hone::read_seeds(paths);
  if (seeds.empty()) {
    std::fprintf(stderr, "usage: %s [--mutations N] [--seed S] FILE_OR_FOLDER...\n", argv[0]);
    return 2;
  }
  hone::Replay replay;
  std::printf("%zu seeds, %llu changes of them with --seed %llu; the input at work: %s\n", seeds.size(),
              static_cast<unsigned long long>(mutations), static_cast<unsigned long long>(seed), replay.path().c_str());
  std::fflush(stdout);
  for (const std::string& input : seeds) replay.run(input);
  hone::PhiloxSequence random(seed);
  for (uint64_t i = 0; i < mutations; ++i) replay.run(hone::mutated(seeds, random));
  std::printf("%lld inputs were answered\n", static_cast<long long>(replay.runs()));
  return 0;
}
