#include "app/bench/bench_tokenizer.h"

#include <fmt/format.h>
#include <time.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>

#include "app/bench/bench_report.h"
#include "app/output.h"
#include "core/base/error.h"
#include "core/cpu/thread_pool.h"
#include "core/text/json.h"
#include "report/table.h"
#include "text/tokenizer.h"

namespace hone {

namespace {

/// A file of text in chunks.
struct BenchText {
  std::string name, text;
  std::vector<std::string_view> chunks;
};

std::vector<std::string_view> chunks_of(std::string_view text, size_t size) {
  std::vector<std::string_view> chunks;
  while (!text.empty()) {
    const size_t line_end = text.size() <= size ? std::string_view::npos : text.find('\n', size - 1);
    chunks.push_back(text.substr(0, line_end == std::string_view::npos ? text.size() : line_end + 1));
    text.remove_prefix(chunks.back().size());
  }
  return chunks;
}

BenchText read_text(const std::string& path, int64_t chunk) {
  std::ifstream file(path, std::ios::binary);
  BenchText text{std::filesystem::path(path).filename().string(), {std::istreambuf_iterator<char>(file), {}}, {}};
  if (!file || text.text.empty()) throw UserError("the text cannot be read, or is empty", path, "give a file of text");
  text.chunks = chunks_of(text.text, static_cast<size_t>(chunk));
  return text;
}

/// CPU time of this thread: what other programs on the machine take does not count.
double thread_seconds() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

double wall_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// The fastest of the passes that fit into `seconds` (at least three, after one that is not timed).
double seconds_per_pass(double seconds, double (*clock)(), const std::function<void()>& pass) {
  pass();
  double best = 1e30, spent = 0;
  for (int i = 0; i < 3 || spent < seconds; ++i) {
    const double begin = clock();
    pass();
    const double taken = clock() - begin;
    best = std::min(best, taken);
    spent += taken;
  }
  return best;
}

double megabytes(size_t bytes) { return static_cast<double>(bytes) / 1e6; }

}  // namespace

int run_bench_tokenizer(const BenchTokenizerOptions& options) {
  BenchOutput output{options.json, {}, options.texts, options.force};
  output.inputs.push_back(options.tokenizer);
  require_bench_output(output);
  const Tokenizer tokenizer = Tokenizer::load(options.tokenizer);
  ThreadPool pool(options.threads);
  Json results = bench_facts("tokenizer", Device{});
  results["tokenizer"] = options.tokenizer;
  results["threads"] = pool.size();
  results["rows"] = Json::array();
  Table table({{"text"},
               {"MB", Align::kRight},
               {"bytes/token", Align::kRight},
               {"encode MB/s", Align::kRight},
               {"with offsets", Align::kRight},
               {"decode", Align::kRight},
               {fmt::format("encode, {} threads", pool.size()), Align::kRight}});
  for (const std::string& path : options.texts) {
    const BenchText text = read_text(path, options.chunk);
    std::vector<std::vector<int32_t>> ids;
    size_t tokens = 0;
    for (const std::string_view chunk : text.chunks) tokens += ids.emplace_back(tokenizer.encode(chunk, false)).size();
    const double size = megabytes(text.text.size());
    const double encode = size / seconds_per_pass(options.seconds, thread_seconds, [&] {
                            for (const std::string_view chunk : text.chunks) tokenizer.encode(chunk, false);
                          });
    const double offsets = size / seconds_per_pass(options.seconds, thread_seconds, [&] {
                             for (const std::string_view chunk : text.chunks)
                               tokenizer.encode_with_offsets(chunk, false);
                           });
    const double decode = size / seconds_per_pass(options.seconds, thread_seconds, [&] {
                            for (const auto& chunk : ids) tokenizer.decode(chunk, false);
                          });
    const double together = size / seconds_per_pass(options.seconds, wall_seconds, [&] {
                              pool.parallel_for(static_cast<int64_t>(text.chunks.size()), [&](int64_t i, int) {
                                tokenizer.encode(text.chunks[static_cast<size_t>(i)], false);
                              });
                            });
    const double bytes_per_token = static_cast<double>(text.text.size()) / static_cast<double>(tokens);
    results["rows"].push_back({{"text", text.name},
                               {"megabytes", size},
                               {"bytes_per_token", bytes_per_token},
                               {"encode_mb_per_s", encode},
                               {"encode_with_offsets_mb_per_s", offsets},
                               {"decode_mb_per_s", decode},
                               {"encode_all_threads_mb_per_s", together}});
    table.add_row({text.name, fmt::format("{:.2f}", size), fmt::format("{:.2f}", bytes_per_token),
                   fmt::format("{:.1f}", encode), fmt::format("{:.1f}", offsets), fmt::format("{:.1f}", decode),
                   fmt::format("{:.1f}", together)});
  }
  write_and_print([&] { write_bench_json(output, results); }, options.json == "-" ? "" : table.to_string());
  return 0;
}

}  // namespace hone
