// Prints the rows of Parquet files as JSON, one on each line, for tools/check_parquet.py.
//   hone_parquet_rows FILE...          the rows of each file
//   hone_parquet_rows --time FILE...   the number of rows and the seconds that reading and parsing took
#include <chrono>
#include <cstdio>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "core/text/json.h"
#include "data/readers/parquet_reader.h"

namespace hone {
namespace {

void print_rows(const std::string& file) {
  const auto reader = open_parquet(file);
  for (RawRow row; reader->next(row);) {
    row.text += '\n';
    std::fwrite(row.text.data(), 1, row.text.size(), stdout);
  }
}

void time_rows(const std::string& file) {
  for (const bool parse : {false, true}) {
    const auto begin = std::chrono::steady_clock::now();
    const auto reader = open_parquet(file);
    long long rows = 0, bytes = 0;
    for (RawRow row; reader->next(row); ++rows) {
      bytes += static_cast<long long>(row.text.size());
      if (parse) parse_row(row);
    }
    const std::chrono::duration<double> time = std::chrono::steady_clock::now() - begin;
    std::printf("%s: %lld rows, %lld bytes of JSON, %.3f s%s\n", file.c_str(), rows, bytes, time.count(),
                parse ? " with parsing" : "");
  }
}

}  // namespace
}  // namespace hone

int main(int argc, char** argv) {
  std::vector<std::string> files(argv + 1, argv + argc);
  const bool time = !files.empty() && files.front() == "--time";
  if (time) files.erase(files.begin());
  try {
    for (const std::string& file : files) time ? hone::time_rows(file) : hone::print_rows(file);
  } catch (const hone::UserError& error) {
    std::fflush(stdout);
    std::fprintf(stderr, "%s: %s\n", error.where().c_str(), error.message().c_str());
    return 2;
  }
  return 0;
}
