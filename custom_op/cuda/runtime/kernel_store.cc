#include "cuda/runtime/kernel_store.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "plan/user_cache.h"
#include "plan/warning.h"

namespace convswap {
namespace {

constexpr std::string_view kSuffix = ".kernel", kPartSuffix = ".part";
// Size limit of the store; the least recently used kernels are deleted first.
constexpr int64_t kMaxStoredBytes = 256 << 20;
constexpr std::chrono::seconds kMaxWait{60};
constexpr std::chrono::milliseconds kPollInterval{20};

// Owns a file descriptor.
class File {
 public:
  File(const std::string& path, int flags, mode_t mode = 0600)
      : file_(open(path.c_str(), flags | O_CLOEXEC, mode)) {}
  ~File() {
    if (file_ >= 0) close(file_);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  bool is_open() const { return file_ >= 0; }
  int number() const { return file_; }

 private:
  int file_;
};

std::string store_folder() {
  const std::string override_folder = environment("CONVSWAP_CACHE");
  const std::string cache = override_folder.empty() ? user_cache_folder() : override_folder;
  return cache.empty() ? cache : cache + "/kernels";
}

// Creates a folder and its parents with access for the user only; ignores errors.
void make_folders(const std::string& path) {
  for (size_t at = path.find('/', 1);; at = path.find('/', at + 1)) {
    mkdir(path.substr(0, at).c_str(), 0700);
    if (at == std::string::npos) return;
  }
}

// Why the folder is not used. If others may write to it, they could run code in this process.
std::string why_unused(const std::string& folder) {
  if (folder.empty()) return "there is no home folder; name a folder in CONVSWAP_CACHE";
  struct stat facts{};
  if (stat(folder.c_str(), &facts) != 0) return "it cannot be made: " + std::string(std::strerror(errno));
  if (!S_ISDIR(facts.st_mode)) return "it is not a folder";
  if (facts.st_uid != geteuid()) return "it is another user's";
  if ((facts.st_mode & (S_IWGRP | S_IWOTH)) != 0)
    return "others may write to it; chmod go-w would keep them out";
  return {};
}

struct Entry {
  std::string path;
  int64_t bytes;
  timespec used;
};

bool is_kernel(const Entry& entry) { return entry.path.ends_with(kSuffix); }

// Kernels, and partial files of processes that ended while writing.
std::vector<Entry> entries_of(const std::string& folder) {
  std::vector<Entry> entries;
  DIR* const directory = opendir(folder.c_str());
  if (directory == nullptr) return entries;
  while (const dirent* found = readdir(directory)) {
    const std::string_view name = found->d_name;
    if (!name.ends_with(kSuffix) && !name.ends_with(kPartSuffix)) continue;
    const std::string path = folder + "/" + found->d_name;
    struct stat facts{};
    if (stat(path.c_str(), &facts) == 0) entries.push_back({path, facts.st_size, facts.st_mtim});
  }
  closedir(directory);
  return entries;
}

// Deletes the least recently used files until the store is below nine tenths of its limit, so that not every
// new kernel has to scan and delete.
void delete_least_recently_used(const std::string& folder) {
  std::vector<Entry> entries = entries_of(folder);
  int64_t bytes = 0;
  for (const Entry& entry : entries) bytes += entry.bytes;
  if (bytes <= kMaxStoredBytes) return;
  std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
    return a.used.tv_sec != b.used.tv_sec ? a.used.tv_sec < b.used.tv_sec : a.used.tv_nsec < b.used.tv_nsec;
  });
  for (const Entry& entry : entries) {
    if (bytes <= kMaxStoredBytes / 10 * 9) return;
    if (unlink(entry.path.c_str()) == 0) bytes -= entry.bytes;
  }
}

// The file name for a key: a readable part, and a hash of the key.
std::string file_name(const std::string& key, const std::string& name) {
  std::string readable;
  for (const char letter : name) {
    const bool is_plain = (letter >= '0' && letter <= '9') || (letter >= 'a' && letter <= 'z') ||
                          (letter >= 'A' && letter <= 'Z');
    if (is_plain) readable += letter;
    if (!is_plain && !readable.empty() && readable.back() != '_') readable += '_';
  }
  char digits[17];
  std::snprintf(digits, sizeof digits, "%016llx", static_cast<unsigned long long>(fnv1a(key)));
  return readable.substr(0, 150) + "-" + digits + std::string(kSuffix);
}

std::optional<std::string> read_file(const std::string& path) {
  const File file(path, O_RDONLY);
  struct stat facts{};
  if (!file.is_open() || fstat(file.number(), &facts) != 0 || !S_ISREG(facts.st_mode)) return std::nullopt;
  // A file that another user could have written is not run.
  if (facts.st_uid != geteuid() || (facts.st_mode & (S_IWGRP | S_IWOTH)) != 0) return std::nullopt;
  std::string text(static_cast<size_t>(facts.st_size), '\0');
  size_t bytes_read = 0;
  while (bytes_read < text.size()) {
    const ssize_t got = read(file.number(), text.data() + bytes_read, text.size() - bytes_read);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return std::nullopt;
    bytes_read += static_cast<size_t>(got);
  }
  return text;
}

bool write_all(int file, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = write(file, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return false;
    text.remove_prefix(static_cast<size_t>(written));
  }
  return fsync(file) == 0;
}

Warning& store_warning() {
  static Warning& warning = *new Warning;  // never destroyed: threads may use it while the process ends
  return warning;
}

}  // namespace

KernelStoreFacts kernel_store_facts() {
  KernelStoreFacts facts;
  facts.folder = store_folder();
  if (!facts.folder.empty()) make_folders(facts.folder);
  facts.unused = why_unused(facts.folder);
  if (!facts.unused.empty()) return facts;
  for (const Entry& entry : entries_of(facts.folder)) {
    facts.kernel_count += is_kernel(entry) ? 1 : 0;
    facts.total_bytes += entry.bytes;
  }
  return facts;
}

int64_t clear_kernel_store() {
  const std::string folder = store_folder();
  int64_t deleted = 0;
  if (!why_unused(folder).empty()) return deleted;
  for (const Entry& entry : entries_of(folder)) {
    deleted += unlink(entry.path.c_str()) == 0 && is_kernel(entry) ? 1 : 0;
  }
  return deleted;
}

StoredKernel::StoredKernel(std::string key, const std::string& name)
    : key_(std::move(key)), folder_(store_folder()) {
  if (!folder_.empty()) make_folders(folder_);
  if (!why_unused(folder_).empty()) {
    folder_.clear();
    return;
  }
  path_ = folder_ + "/" + file_name(key_, name);
  // A kernel that is already stored needs no lock.
  code_ = read_stored();
  if (code_) return;
  // Lock files are separate, since kernel files are replaced by rename. They are at most 256, so they are not
  // deleted.
  const std::string lock = folder_ + "/lock-" + path_.substr(path_.size() - kSuffix.size() - 2, 2);
  lock_ = open(lock.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (lock_ < 0) return;
  const auto end = std::chrono::steady_clock::now() + kMaxWait;
  while (flock(lock_, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK &&
         std::chrono::steady_clock::now() < end) {
    std::this_thread::sleep_for(kPollInterval);
  }
}

StoredKernel::~StoredKernel() {
  if (lock_ < 0) return;
  // Unlocked explicitly: a process forked meanwhile shares the open file and would keep the lock.
  flock(lock_, LOCK_UN);
  close(lock_);
}

bool StoredKernel::exists(const std::string& key, const std::string& name) {
  const std::string folder = store_folder();
  struct stat facts{};
  return why_unused(folder).empty() && stat((folder + "/" + file_name(key, name)).c_str(), &facts) == 0;
}

std::optional<KernelCode> StoredKernel::read() {
  if (folder_.empty()) return std::nullopt;
  if (!code_) code_ = read_stored();
  if (!code_ && access(path_.c_str(), F_OK) == 0) {
    store_warning().set("the kernel store's file '" + path_ +
                        "' is damaged, or others may write to it; its kernel is compiled again");
  }
  // Updates the time of last use.
  if (code_) utimensat(AT_FDCWD, path_.c_str(), nullptr, 0);
  return std::exchange(code_, std::nullopt);
}

std::optional<KernelCode> StoredKernel::read_stored() const {
  const std::optional<std::string> text = read_file(path_);
  return text ? parse_kernel_code(key_, *text) : std::nullopt;
}

void StoredKernel::write(const KernelCode& code) const {
  if (folder_.empty()) return;
  static std::atomic<int> count{0};
  const std::string part_path =
      path_ + "." + std::to_string(getpid()) + "." + std::to_string(++count) + std::string(kPartSuffix);
  int error = 0;
  {
    const File file(part_path, O_WRONLY | O_CREAT | O_EXCL);
    if (!file.is_open() || !write_all(file.number(), text_of(key_, code))) error = errno;
  }
  if (error == 0 && rename(part_path.c_str(), path_.c_str()) != 0) error = errno;
  if (error != 0) {
    unlink(part_path.c_str());
    store_warning().set("kernels cannot be kept in the kernel store '" + folder_ +
                        "': " + std::strerror(error) + "; each process compiles them again");
  }
  delete_least_recently_used(folder_);
}

std::string take_kernel_store_warning() { return store_warning().take(); }

}  // namespace convswap
