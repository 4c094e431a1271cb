// hone report and hone compare: pages that show runs, from the files in their folders.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/text/json_value.h"

namespace hone {

struct ReportPageOptions {
  std::string folder;  ///< the output_dir of a run
  std::string output;  ///< "": FOLDER/report.html
  bool force = false;
};

/// Writes the page of a run, finished or not; an earlier page is replaced. Returns the exit code. Throws UserError if
/// the folder holds no run.
int run_report(const ReportPageOptions& options);

struct CompareOptions {
  std::vector<std::string> folders;
  std::string output = "compare.html";
  bool force = false;
  bool json = false;
};

/// Writes a page that lays runs over each other, and prints a table: state, steps, last loss, best evaluation, rate,
/// memory, time. Returns the exit code. Throws UserError for fewer than two folders, or one that holds no run.
int run_compare(const CompareOptions& options);

/// Records of runs (report/page/run_record.h) with the names that tables show.
using RunRecords = std::vector<std::pair<std::string, JsonValue>>;

/// A row for each record; "*" before the best. `width`: see Table.
std::string summary_table(const RunRecords& records, bool color, int width);

/// The place of the record with the least evaluation loss; nothing if none has been evaluated.
std::optional<size_t> best_of(const RunRecords& records);

}  // namespace hone
