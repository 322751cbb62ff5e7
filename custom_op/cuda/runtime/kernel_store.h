#pragma once

// The kernel store: compiled kernels on disk, one file each, in the folder `kernels` of $CONVSWAP_CACHE, or
// else of convswap's folder in the user's cache folder. An unusable store (missing, read-only, full, owned by
// another user, or writable by others) is never an error: kernels are then compiled again.

#include <cstdint>
#include <optional>
#include <string>

#include "cuda/runtime/kernel_code.h"

namespace convswap {

struct KernelStoreFacts {
  std::string folder;  // empty if there is no home folder
  std::string unused;  // why the store is not used; empty if it is used
  int64_t kernel_count = 0;
  int64_t total_bytes = 0;
};

KernelStoreFacts kernel_store_facts();

// Deletes all kernels in the store; returns their number.
int64_t clear_kernel_store();

// One kernel's entry in the store, locked: if several processes want the same kernel, one compiles it and the
// others wait and then read it. Waiting ends after one minute.
class StoredKernel {
 public:
  // `key`: one line with everything that the code depends on; `name`: the readable part of the file name.
  StoredKernel(std::string key, const std::string& name);
  ~StoredKernel();
  StoredKernel(const StoredKernel&) = delete;
  StoredKernel& operator=(const StoredKernel&) = delete;

  // True if the kernel's file exists; does not wait for a process that is compiling it.
  static bool exists(const std::string& key, const std::string& name);

  // Nothing if the kernel is not stored or its file is damaged.
  std::optional<KernelCode> read();

  // Stores the kernel if possible. Other processes never see a partial file.
  void write(const KernelCode& code) const;

 private:
  std::optional<KernelCode> read_stored() const;

  std::optional<KernelCode> code_;  // read before the lock was taken
  std::string key_;
  std::string folder_;  // empty if the store is not used
  std::string path_;
  int lock_ = -1;
};

// Returns and clears the last warning, one line about a damaged file or a failed write; empty if there is
// none.
std::string take_kernel_store_warning();

}  // namespace convswap
