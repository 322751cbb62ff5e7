#pragma once

// Where compiled kernels are kept from one process to the next: a file for each, in the folder `kernels` of
// $CONVSWAP_CACHE, else of convswap's folder among the user's caches. A store that cannot be used (none,
// read-only, full, another user's, or such that others may write to it) is never an error: kernels are then
// compiled again.

#include <cstdint>
#include <optional>
#include <string>

#include "cuda/runtime/kernel_code.h"

namespace convswap {

struct KernelStoreFacts {
  std::string folder;  // empty where there is no home folder
  std::string unused;  // why it is not used; empty where it is
  int64_t kernels = 0;
  int64_t bytes = 0;
};

KernelStoreFacts kernel_store_facts();

// Deletes all kernels that are kept; returns how many they were.
int64_t clear_kernel_store();

// The place of one kernel in the store, held: of all processes that want it one compiles it, and the others
// wait and then find it. After a minute nobody waits any more.
class StoredKernel {
 public:
  // `key`: all that the code depends on, in one line; `name`: for people who look into the folder.
  StoredKernel(std::string key, const std::string& name);
  ~StoredKernel();
  StoredKernel(const StoredKernel&) = delete;
  StoredKernel& operator=(const StoredKernel&) = delete;

  // Whether there is a file for it, without waiting for whoever makes it.
  static bool is_there(const std::string& key, const std::string& name);

  // Nothing where it is not there, or was damaged.
  std::optional<KernelCode> read();

  // As far as it can be written. What is there is whole at any time.
  void write(const KernelCode& code) const;

 private:
  std::optional<KernelCode> read_whole() const;

  std::optional<KernelCode> found_;  // before anybody waited
  std::string key_;
  std::string folder_;  // empty where the store is not used
  std::string path_;
  int lock_ = -1;
};

// One line about damage, or about a kernel that could not be written, since the last call; empty where there
// was none.
std::string take_kernel_store_warning();

}  // namespace convswap
