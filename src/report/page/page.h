// The page that shows runs: one file of HTML with its style, its script and the data, which asks for nothing outside.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "core/text/json_fwd.h"

namespace hone {

class RunRecordReader;

/// The most bytes of a page of runs that have no more than about fifty series each; the data are reduced until it fits.
inline constexpr size_t kMostPageBytes = 2'000'000;

/// Whether a text is the beginning of a page of write_run_page() or another verb's: files that may be replaced.
bool is_page(std::string_view text);

/// A page with `data` (docs of its fields: page.js). Nothing in the data can end its element or run: in the text every
/// <, > and & of a string is an escape of JSON, and a Content-Security-Policy allows the page's own style and script
/// alone, by their hashes. Invalid UTF-8 is replaced.
std::string page_html(const Json& data);

/// The page of one run: its record (report/page/run_record.h) with the details that fit. Throws UserError as
/// read_run_record().
std::string run_page(const std::filesystem::path& folder);

/// The page of a run that is served (report/page/status_server.h): it has no data of its own, and asks its server for
/// them.
std::string page_of_server();

/// The data of run_page() on one line, for page_of_server(). Throws UserError as read_run_record().
std::string run_page_data(RunRecordReader& run);

/// The same for a folder that holds no run yet.
std::string waiting_page_data(const std::string& why);

/// The page that lays several runs over each other. `extra`: further fields of the data (of a sweep), or null. Throws
/// UserError as read_run_record().
std::string compare_page(const std::vector<std::filesystem::path>& folders, const Json& extra);

/// Writes run_page() to FOLDER/report.html. Throws UserError on failure.
void write_run_page(const std::filesystem::path& folder);

inline constexpr const char* kPageName = "report.html";

}  // namespace hone
