#include "report/page/page.h"

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <openssl/evp.h>

#include <algorithm>
#include <array>
#include <ctime>

#include "core/base/error.h"
#include "core/base/program.h"
#include "core/files/durable_file.h"
#include "core/text/json.h"
#include "report/page/page_files.h"
#include "report/page/run_record.h"

namespace hone {

namespace {

constexpr const char* kLive = "live";
constexpr std::string_view kBeginning = "<!doctype html>\n<!-- hone report -->\n";

std::string_view page_file(std::string_view name) {
  for (const PageFile& file : page_files()) {
    if (file.name == name) return file.text;
  }
  HONE_ASSERT(false, std::string(name));
}

/// 'sha256-…' of an element's text, as a Content-Security-Policy names it.
std::string policy_hash(std::string_view text) {
  std::array<unsigned char, EVP_MAX_MD_SIZE> hash{};
  unsigned int size = 0;
  HONE_ASSERT(EVP_Digest(text.data(), text.size(), hash.data(), &size, EVP_sha256(), nullptr) == 1);
  std::array<unsigned char, 2 * EVP_MAX_MD_SIZE> encoded{};
  const int length = EVP_EncodeBlock(encoded.data(), hash.data(), static_cast<int>(size));
  return "'sha256-" + std::string(reinterpret_cast<const char*>(encoded.data()), static_cast<size_t>(length)) + "'";
}

/// JSON for a script element: ASCII alone, and no <, > or &, which only strings have.
std::string embedded(const Json& data) {
  std::string text;
  for (const char c : data.dump(-1, ' ', true, Json::error_handler_t::replace)) {
    if (c == '<' || c == '>' || c == '&') {
      text += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
    } else {
      text += c;
    }
  }
  return text;
}

std::string now_text() { return fmt::format("{:%Y-%m-%d %H:%M} UTC", fmt::gmtime(std::time(nullptr))); }

/// Makes smaller and smaller pages until one fits; the last one is returned in any case.
template <class Make>
std::string fitting_page(RecordLimits limits, const Make& make) {
  std::string page = make(limits);
  for (int tries = 0; tries < 6 && page.size() > kMostPageBytes; ++tries) {
    limits.buckets = std::max<size_t>(limits.buckets / 2, 16);
    limits.load_bytes /= 2;
    limits.text = std::max<size_t>(limits.text / 2, 200);
    page = make(limits);
  }
  return page;
}

Json page_data(const char* kind) { return {{"kind", kind}, {"hone", version()}, {"written", now_text()}}; }

}  // namespace

bool is_page(std::string_view text) { return text.starts_with(kBeginning); }

std::string page_html(const Json& data) {
  const std::string_view markup = page_file("page.html"), style = page_file("page.css"), script = page_file("page.js");
  const std::string policy = fmt::format(
      "default-src 'none'; style-src {}; script-src {}; base-uri 'none'; form-action 'none'{}", policy_hash(style),
      policy_hash(script), data.value("kind", "") == kLive ? "; connect-src 'self'" : "");
  std::string page(kBeginning);
  // The places of the markup, in order.
  const std::pair<std::string_view, std::string> places[] = {{"{policy}", policy},
                                                             {"{style}", std::string(style)},
                                                             {"{data}", embedded(data)},
                                                             {"{script}", std::string(script)}};
  std::string_view rest = markup;
  for (const auto& [place, text] : places) {
    const size_t at = rest.find(place);
    HONE_ASSERT(at != std::string_view::npos, std::string(place));
    page += rest.substr(0, at);
    page += text;
    rest.remove_prefix(at + place.size());
  }
  return page += rest;
}

std::string page_of_server() { return page_html(page_data(kLive)); }

namespace {

Json data_of_run(RunRecordReader& run, const RecordLimits& limits) {
  Json data = page_data("run");
  data["runs"] = Json::array({run.read(limits)});
  return data;
}

}  // namespace

std::string run_page(const std::filesystem::path& folder) {
  RunRecordReader run(folder);
  return fitting_page({}, [&](const RecordLimits& limits) { return page_html(data_of_run(run, limits)); });
}

std::string run_page_data(RunRecordReader& run) {
  return fitting_page({}, [&](const RecordLimits& limits) { return embedded(data_of_run(run, limits)); });
}

std::string waiting_page_data(const std::string& why) {
  Json data = page_data("waiting");
  data["why"] = why;
  return embedded(data);
}

std::string compare_page(const std::vector<std::filesystem::path>& folders, const Json& extra) {
  const RecordLimits limits{.buckets = std::clamp<size_t>(4000 / std::max<size_t>(folders.size(), 1), 60, 600),
                            .details = false};
  return fitting_page(limits, [&](const RecordLimits& now) {
    Json data = page_data("compare");
    if (extra.is_object()) data.update(extra);
    Json runs = Json::array();
    for (const std::filesystem::path& folder : folders) runs.push_back(read_run_record(folder, now));
    data["runs"] = std::move(runs);
    return page_html(data);
  });
}

void write_run_page(const std::filesystem::path& folder) { write_durably(folder / kPageName, run_page(folder)); }

}  // namespace hone
