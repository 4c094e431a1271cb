#include "hub/part_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <openssl/evp.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <system_error>

#include "core/base/checksum.h"
#include "core/base/error.h"
#include "core/files/durable_file.h"

namespace hone {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kMagic = "HONEPART";
constexpr uint64_t kNoteHead = 16;  // the magic and the size of a piece
constexpr uint64_t kMiB = 1 << 20;
constexpr time_t kAbandoned = 60;  // seconds without a write

/// Large enough for few requests, small enough to share a file among connections and to lose little.
uint64_t piece_of(uint64_t size) { return std::clamp(size / 64 / kMiB * kMiB, 8 * kMiB, 64 * kMiB); }

size_t pieces_of(uint64_t size, uint64_t piece) { return static_cast<size_t>((size + piece - 1) / piece); }

std::string suffix_of_host() {
  std::array<char, 256> name{};
  ::gethostname(name.data(), name.size() - 1);
  return fmt::format(".{:08x}.incomplete", static_cast<uint32_t>(xxh64(name.data())));
}

/// Reads `count` bytes; false if the file is shorter or cannot be read.
bool read_all(int file, char* bytes, size_t count, uint64_t offset) {
  while (count > 0) {
    const ssize_t got = ::pread(file, bytes, count, static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    bytes += got;
    count -= static_cast<size_t>(got);
    offset += static_cast<uint64_t>(got);
  }
  return true;
}

bool write_all(int file, std::string_view bytes, uint64_t offset) {
  while (!bytes.empty()) {
    const ssize_t put = ::pwrite(file, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (put < 0 && errno == EINTR) continue;
    if (put <= 0) return false;
    bytes.remove_prefix(static_cast<size_t>(put));
    offset += static_cast<uint64_t>(put);
  }
  return true;
}

}  // namespace

PartFile::PartFile(const fs::path& blob, uint64_t size)
    : blob_(blob), path_(blob.string() + suffix_of_host()), size_(size), piece_(piece_of(size)) {
  adopt_another();
  open();
}

uint64_t PartFile::piece_end(size_t piece) const { return std::min(size_, (piece + 1) * piece_); }

uint64_t PartFile::whole_size() const { return size_ + kNoteHead + done_.size(); }

uint64_t PartFile::bytes_done() const {
  uint64_t bytes = 0;
  for (size_t i = 0; i < done_.size(); ++i) bytes += done_[i] != 0 ? piece_end(i) - piece_begin(i) : 0;
  return bytes;
}

void PartFile::fail(const char* what) const {
  const int reason = errno;
  throw UserError(fmt::format("{} the cache of the hub failed: {}", what, std::generic_category().message(reason)),
                  path_.string(),
                  reason == ENOSPC || reason == EDQUOT
                      ? "make space, or set HF_HUB_CACHE to a folder of another disk; the download goes on from here"
                      : "check the disk; the download goes on where it stopped");
}

void PartFile::adopt_another() const {
  std::error_code error;
  if (is_name_taken(path_)) return;
  const fs::path older = blob_.string() + ".incomplete";
  if (fs::is_regular_file(fs::symlink_status(older, error))) {
    fs::rename(older, path_, error);
    return;
  }
  const std::string begin = blob_.filename().string() + ".";
  for (const auto& entry : fs::directory_iterator(blob_.parent_path(), error)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with(begin) || !name.ends_with(".incomplete")) continue;
    struct stat facts {};
    // Its size says whether it is one of these; by the clock of this host, files of a shared disk may be off by a
    // little.
    if (::lstat(entry.path().c_str(), &facts) != 0 || !S_ISREG(facts.st_mode)) continue;
    const bool ours = static_cast<uint64_t>(facts.st_size) == size_ + kNoteHead + pieces_of(size_, piece_);
    if (!ours || ::time(nullptr) - facts.st_mtime < kAbandoned) continue;
    fs::rename(entry.path(), path_, error);
    if (!error) return;
  }
}

void PartFile::open() {
  done_.assign(pieces_of(size_, piece_), 0);
  file_ = Descriptor(::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666));
  if (!file_.open()) fail("opening a file of");
  struct stat facts {};
  if (::fstat(file_.descriptor(), &facts) != 0 || !S_ISREG(facts.st_mode)) fail("opening a file of");
  const auto there = static_cast<uint64_t>(facts.st_size);
  std::array<char, kNoteHead> head{};
  uint64_t piece = 0;
  if (there == whole_size() && read_all(file_.descriptor(), head.data(), head.size(), size_)) {
    std::memcpy(&piece, head.data() + kMagic.size(), sizeof piece);
    const bool noted =
        std::string_view(head.data(), kMagic.size()) == kMagic && piece == piece_ &&
        read_all(file_.descriptor(), reinterpret_cast<char*>(done_.data()), done_.size(), size_ + kNoteHead);
    if (noted && std::all_of(done_.begin(), done_.end(), [](unsigned char d) { return d <= 1; })) return;
    done_.assign(done_.size(), 0);
  } else if (there <= size_) {
    // A beginning, or a file that a program was about to rename: its hash decides.
    for (size_t i = 0; i < done_.size(); ++i) done_[i] = piece_end(i) <= there ? 1 : 0;
  }
  std::memcpy(head.data(), kMagic.data(), kMagic.size());
  std::memcpy(head.data() + kMagic.size(), &piece_, sizeof piece_);
  const std::string note = std::string(head.data(), head.size()) + std::string(done_.begin(), done_.end());
  const bool written = ::ftruncate(file_.descriptor(), static_cast<off_t>(std::min(there, size_))) == 0 &&
                       write_all(file_.descriptor(), note, size_);
  if (!written) fail("writing a file of");
}

void PartFile::write(uint64_t offset, std::string_view bytes) const {
  if (!write_all(file_.descriptor(), bytes, offset)) fail("writing a file of");
}

void PartFile::note(size_t piece) const {
  if (!write_all(file_.descriptor(), "\1", size_ + kNoteHead + piece)) fail("writing a file of");
  ::sync_file_range(file_.descriptor(), static_cast<off64_t>(piece_begin(piece)),
                    static_cast<off64_t>(piece_end(piece) - piece_begin(piece)), SYNC_FILE_RANGE_WRITE);
}

std::string_view PartFile::read(uint64_t offset, size_t count, std::string& buffer) const {
  buffer.resize(count);
  if (!read_all(file_.descriptor(), buffer.data(), count, offset)) fail("reading a file of");
  return buffer;
}

void PartFile::finish() {
  if (::ftruncate(file_.descriptor(), static_cast<off_t>(size_)) != 0 || !sync_file(file_.descriptor())) {
    fail("writing a file of");
  }
  std::error_code error;
  fs::rename(path_, blob_, error);
  if (error) {
    errno = error.value();
    fail("renaming a file of");
  }
}

void PartFile::discard() {
  std::error_code error;
  fs::remove(path_, error);
}

BlobHash::BlobHash(const RepoFile& file) : context_(EVP_MD_CTX_new()) {
  HONE_ASSERT(context_ != nullptr);
  auto* context = static_cast<EVP_MD_CTX*>(context_);
  HONE_ASSERT(EVP_DigestInit_ex(context, file.sha256.empty() ? EVP_sha1() : EVP_sha256(), nullptr) == 1);
  if (!file.sha256.empty()) return;
  const std::string head = fmt::format("blob {}", file.size);
  EVP_DigestUpdate(context, head.c_str(), head.size() + 1);
}

BlobHash::~BlobHash() { EVP_MD_CTX_free(static_cast<EVP_MD_CTX*>(context_)); }

void BlobHash::update(std::string_view bytes) {
  EVP_DigestUpdate(static_cast<EVP_MD_CTX*>(context_), bytes.data(), bytes.size());
  bytes_ += bytes.size();
}

std::string BlobHash::digest() {
  std::array<unsigned char, EVP_MAX_MD_SIZE> hash{};
  unsigned int size = 0;
  EVP_DigestFinal_ex(static_cast<EVP_MD_CTX*>(context_), hash.data(), &size);
  std::string text;
  for (unsigned int i = 0; i < size; ++i) text += fmt::format("{:02x}", hash[i]);
  return text;
}

}  // namespace hone
