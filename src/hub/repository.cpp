#include "hub/repository.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "core/base/error.h"
#include "core/base/printable.h"
#include "core/text/json.h"
#include "core/text/untrusted_json.h"
#include "hub/http.h"

namespace hone {
namespace {

constexpr size_t kMostFiles = 500'000;
constexpr size_t kMostPages = 10'000;
constexpr uint64_t kMostFileBytes = uint64_t{1} << 44;  // 16 TiB

bool is_hex(std::string_view text, size_t digits) {
  return text.size() == digits &&
         std::all_of(text.begin(), text.end(), [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}

/// One part of an id.
bool is_id_part(std::string_view part) {
  const auto fits = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_' ||
           c == '.';
  };
  return !part.empty() && part.size() <= 96 && std::all_of(part.begin(), part.end(), fits) && part.front() != '.' &&
         part.front() != '-' && part.back() != '.' && part.back() != '-' && part.find("..") == std::string_view::npos &&
         part.find("--") == std::string_view::npos;
}

std::string api_path(const Repo& repo) { return fmt::format("api/{}s/{}", name_of(repo.type), repo.id); }

/// The page of a repository, for people.
std::string page_of(const HubSettings& settings, const Repo& repo) {
  return settings.address((repo.type == RepoType::kDataset ? "datasets/" : "") + repo.id).text();
}

[[noreturn]] void refuse_answer(const HubSettings& settings, const std::string& what) {
  throw UserError("the hub's answer is not one of a hub: " + what, settings.endpoint.origin(),
                  "check HF_ENDPOINT, and that no proxy answers in its place");
}

std::string text_of(const Json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_string() ? found->get<std::string>() : "";
}

/// The size that an entry states; more than any file has without.
uint64_t size_in(const Json& entry, const char* key) {
  const auto found = entry.find(key);
  return found == entry.end() ? UINT64_MAX : whole_number<uint64_t>(*found).value_or(UINT64_MAX);
}

/// The file of an entry of the API's tree.
RepoFile file_of(const HubSettings& settings, const Json& entry) {
  RepoFile file{.path = text_of(entry, "path"), .blob = text_of(entry, "oid"), .xet = text_of(entry, "xetHash")};
  const uint64_t size = size_in(entry, "size");
  if (!is_safe_file_name(file.path)) {
    refuse_answer(settings, fmt::format("it lists a file named '{}'", one_line(file.path.substr(0, 200))));
  }
  if (size > kMostFileBytes) refuse_answer(settings, fmt::format("{} has no size", file.path));
  file.size = size;
  if (entry.contains("lfs") && entry["lfs"].is_object()) {
    file.sha256 = text_of(entry["lfs"], "oid");
    if (file.sha256.starts_with("sha256:")) file.sha256.erase(0, 7);
    if (!is_hex(file.sha256, 64)) refuse_answer(settings, fmt::format("{} has no SHA-256", file.path));
  }
  if (!is_hex(file.blob, 40)) refuse_answer(settings, fmt::format("{} has no git hash", file.path));
  if (!is_hex(file.xet, 64)) file.xet.clear();
  return file;
}

/// The address of the next page, from a header Link: <...>; rel="next".
std::string next_page(const HttpHeaders& headers) {
  const auto found = headers.find("link");
  if (found == headers.end()) return "";
  std::string_view link = found->second;
  while (!link.empty()) {
    const size_t begin = link.find('<'), end = link.find('>');
    if (begin == std::string_view::npos || end == std::string_view::npos || end < begin) return "";
    const std::string_view about = link.substr(end, link.find('<', end) - end);
    if (about.find("rel=\"next\"") != std::string_view::npos)
      return std::string(link.substr(begin + 1, end - begin - 1));
    link = link.substr(std::min(link.size(), end + about.size()));
  }
  return "";
}

/// " Did you mean 'ORG/NAME'?" by what the hub finds for the name, or "".
std::string near_repositories(HubHttp& http, const HubSettings& settings, const Repo& repo) {
  constexpr size_t kMost = 1 << 22;
  const size_t slash = repo.id.find('/');
  const std::string last = repo.id.substr(slash + 1), first_word = last.substr(0, last.find_first_of("-_."));
  std::vector<std::string> ids;
  std::set<std::string> queries = {"search=" + percent_encoded(last)};
  if (first_word.size() >= 3) queries.insert("search=" + percent_encoded(first_word));
  if (slash != std::string::npos) queries.insert("author=" + percent_encoded(repo.id.substr(0, slash)));
  for (const std::string& query : queries) {
    const std::string path = fmt::format("api/{}s?{}&limit=100", name_of(repo.type), query);
    try {
      const Json found = parse_json(std::string_view(http.get(settings.address(path), kMost, 1).body));
      if (!found.is_array()) continue;
      for (const Json& entry : found) {
        const std::string id = entry.is_object() ? text_of(entry, "id") : "";
        if (parse_repo_name(repo.type, id, true)) ids.push_back(id);
      }
    } catch (const HubError&) {  // a help that may fail
    }
  }
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  if (const std::string near = did_you_mean(repo.id, ids); !near.empty()) return near;
  // The same name of another owner.
  for (const std::string& id : ids) {
    if (id.ends_with("/" + last)) return fmt::format(" Did you mean '{}'?", id);
  }
  return "";
}

std::string token_advice(const HubSettings& settings) {
  return settings.token.empty()
             ? "set HF_TOKEN to a token of an account that may read it (https://huggingface.co/settings/tokens)"
             : "check that the token of HF_TOKEN is valid, and that its account may read it";
}

}  // namespace

const char* name_of(RepoType type) { return type == RepoType::kModel ? "model" : "dataset"; }

bool is_commit(std::string_view text) { return is_hex(text, 40); }

bool is_safe_file_name(std::string_view path) {
  if (path.empty() || path.size() > 1024 || path.find('\\') != std::string_view::npos) return false;
  if (one_line(path) != path) return false;
  for (size_t begin = 0; begin <= path.size();) {
    const size_t end = std::min(path.find('/', begin), path.size());
    const std::string_view part = path.substr(begin, end - begin);
    if (part.empty() || part == "." || part == ".." || part.size() > 255) return false;
    begin = end + 1;
  }
  return true;
}

bool is_revision(std::string_view text) {
  return text.size() <= 255 && is_safe_file_name(text) && text.find_first_of(" ~^:?*[@") == std::string_view::npos;
}

std::optional<RepoName> parse_repo_name(RepoType type, std::string_view text, bool bare) {
  RepoName name;
  name.repo.type = type;
  if (const size_t at = text.find('@'); at != std::string_view::npos) {
    name.revision = text.substr(at + 1);
    name.stated = true;
    text = text.substr(0, at);
    if (!is_revision(name.revision)) return std::nullopt;
  }
  const size_t slash = text.find('/');
  if (slash == std::string_view::npos ? !bare || !is_id_part(text)
                                      : !is_id_part(text.substr(0, slash)) || !is_id_part(text.substr(slash + 1))) {
    return std::nullopt;
  }
  name.repo.id = text;
  return name;
}

RepoName at_revision(RepoName name, const std::string& revision, const std::string& key, const std::string& place) {
  if (revision.empty()) return name;
  if (name.stated && name.revision != revision) {
    throw UserError(fmt::format("the name says the revision {}, and {} {}", name.revision, key, revision), place,
                    "leave one of them out");
  }
  if (!is_revision(revision)) {
    throw UserError(fmt::format("'{}' is not a revision", revision), place,
                    "a revision is a branch, a tag or a commit");
  }
  name.revision = revision;
  name.stated = true;
  return name;
}

const RepoFile* RepoListing::find(std::string_view path) const {
  const auto found = std::lower_bound(files.begin(), files.end(), path,
                                      [](const RepoFile& file, std::string_view name) { return file.path < name; });
  return found != files.end() && found->path == path ? &*found : nullptr;
}

Url file_address(const HubSettings& settings, const Repo& repo, const std::string& commit, const std::string& path) {
  return settings.address(fmt::format("{}{}/resolve/{}/{}", repo.type == RepoType::kDataset ? "datasets/" : "", repo.id,
                                      commit, percent_encoded(path, true)));
}

void explain(HubHttp& http, const HubSettings& settings, const RepoName& name, const HubError& error) {
  const Repo& repo = name.repo;
  const std::string page = page_of(settings, repo), what = fmt::format("the {} '{}'", name_of(repo.type), repo.id);
  if (error.kind == HubError::Kind::kTrust) {
    throw UserError(error.what(), page,
                    "set SSL_CERT_FILE to a file with the certificates to trust (PEM): those of the system, and that "
                    "of a proxy that opens connections");
  }
  if (error.of_store) {
    throw UserError(fmt::format("{} was not read: {}", what, error.what()), page,
                    "the store that the hub names has not got it: try later, or another HF_ENDPOINT");
  }
  if (error.code == "GatedRepo" || (error.status == 403 && error.code != "RepoNotFound")) {
    throw UserError(fmt::format("{} is gated: its owner gives access to those who accept its conditions{}", what,
                                error.message.empty() ? "" : " (" + error.message + ")"),
                    page, fmt::format("accept them at {} in your browser, and {}", page, token_advice(settings)));
  }
  if (error.code == "RevisionNotFound") {
    throw UserError(fmt::format("{} has no revision '{}'", what, name.revision), page,
                    "use a branch, a tag or a commit that its page lists under Files and versions");
  }
  if (error.status == 401 && error.message.find("credentials") != std::string::npos) {
    throw UserError("the hub does not accept the token", page,
                    "set HF_TOKEN to a valid one (https://huggingface.co/settings/tokens), or unset it");
  }
  if (error.status == 401 || error.status == 404) {
    const std::string near = near_repositories(http, settings, repo);
    const std::string other = name_of(repo.type == RepoType::kModel ? RepoType::kDataset : RepoType::kModel);
    throw UserError(
        fmt::format("the hub has no {} '{}', or hides it from this account.{}", name_of(repo.type), repo.id, near),
        page,
        fmt::format("check the name, and that it is not a {}; if it is private, {}", other, token_advice(settings)));
  }
  if (error.status == 429) {
    throw UserError(fmt::format("the hub limits the rate of calls: {}", error.what()), page,
                    settings.token.empty() ? "try later; with HF_TOKEN more calls are allowed"
                                           : "try later: the same command goes on where it stopped");
  }
  throw UserError(fmt::format("{} was not read: {}", what, error.what()), page,
                  error.kind == HubError::Kind::kRefused
                      ? "the server is not to be trusted with this: check HF_ENDPOINT, and report it"
                      : "check the connection (HTTPS_PROXY names a proxy, HF_ENDPOINT a mirror), and give the same "
                        "command again: it goes on where it stopped");
}

std::string commit_of_revision(HubHttp& http, const HubSettings& settings, const RepoName& name) {
  constexpr size_t kMost = 1 << 26;
  try {
    const std::string path = fmt::format("{}/revision/{}", api_path(name.repo), percent_encoded(name.revision));
    const Json info = parse_json(std::string_view(http.get(settings.address(path), kMost).body));
    const std::string commit = info.is_object() ? text_of(info, "sha") : "";
    if (!is_commit(commit)) refuse_answer(settings, "it says no commit");
    return commit;
  } catch (const HubError& error) {
    explain(http, settings, name, error);
  }
}

RepoListing list_repository(HubHttp& http, const HubSettings& settings, const RepoName& name,
                            const std::string& commit) {
  constexpr size_t kMostPage = 1 << 26;
  RepoListing listing{commit, {}};
  std::set<std::string> paths;
  try {
    Url page = settings.address(fmt::format("{}/tree/{}?recursive=true", api_path(name.repo), commit));
    for (size_t pages = 1;; ++pages) {
      const HubHttp::Answer answer = http.get(page, kMostPage);
      const Json entries = parse_json(std::string_view(answer.body));
      if (!entries.is_array()) refuse_answer(settings, "it lists no files");
      for (const Json& entry : entries) {
        if (!entry.is_object()) refuse_answer(settings, "it lists no files");
        if (text_of(entry, "type") != "file") continue;
        listing.files.push_back(file_of(settings, entry));
        const std::string& path = listing.files.back().path;
        if (!paths.insert(path).second) refuse_answer(settings, fmt::format("it lists {} twice", path));
      }
      const std::string next = next_page(answer.headers);
      if (next.empty()) break;
      const std::optional<Url> url = resolve_url(answer.url, next);
      if (!url || !url->same_origin(settings.endpoint)) refuse_answer(settings, "its next page is elsewhere");
      if (listing.files.size() > kMostFiles || pages == kMostPages) refuse_answer(settings, "its list does not end");
      page = *url;
    }
  } catch (const HubError& error) {
    explain(http, settings, name, error);
  }
  std::sort(listing.files.begin(), listing.files.end(),
            [](const RepoFile& a, const RepoFile& b) { return a.path < b.path; });
  return listing;
}

std::string listing_text(const RepoListing& listing) {
  Json files = Json::object();
  for (const RepoFile& file : listing.files) {
    Json entry = {{"size", file.size}, {"blob_id", file.blob}};
    if (!file.sha256.empty()) {
      entry["lfs_sha256"] = file.sha256;
      entry["lfs_size"] = file.size;
    }
    if (!file.xet.empty()) entry["xet_hash"] = file.xet;
    files[file.path] = std::move(entry);
  }
  return Json({{"format_version", 1}, {"files", std::move(files)}}).dump(1);
}

std::optional<RepoListing> parse_listing(std::string_view text, const std::string& commit) {
  const Json tree = parse_json(text);
  if (!tree.is_object() || !tree.contains("format_version") || tree["format_version"] != 1) return std::nullopt;
  if (!tree.contains("files") || !tree["files"].is_object()) return std::nullopt;
  RepoListing listing{commit, {}};
  for (const auto& [path, entry] : tree["files"].items()) {
    if (!entry.is_object() || !is_safe_file_name(path)) return std::nullopt;
    RepoFile file{.path = path,
                  .blob = text_of(entry, "blob_id"),
                  .sha256 = text_of(entry, "lfs_sha256"),
                  .xet = text_of(entry, "xet_hash")};
    const char* key = file.sha256.empty() ? "size" : "lfs_size";
    const uint64_t size = size_in(entry, key);
    const bool hashes = is_hex(file.blob, 40) && (file.sha256.empty() || is_hex(file.sha256, 64));
    if (size > kMostFileBytes || !hashes) return std::nullopt;
    file.size = size;
    listing.files.push_back(std::move(file));
  }
  std::sort(listing.files.begin(), listing.files.end(),
            [](const RepoFile& a, const RepoFile& b) { return a.path < b.path; });
  return listing;
}

}  // namespace hone
