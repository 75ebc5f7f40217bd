//! A kernel limit on the memory of this process, including its page cache.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use crate::PeerError;

/// Mount point of control groups of version 1.
const MOUNT: &str = "/sys/fs/cgroup/memory";
/// Number of groups that this process has made.
static GROUPS: AtomicU32 = AtomicU32::new(0);

/// A memory control group that contains only this process. Dropping it lifts the limit. Memory taken before
/// is not counted.
#[derive(Debug)]
pub struct MemoryLimit {
    parent: PathBuf,
    own: PathBuf,
}

impl MemoryLimit {
    /// Put this process into a new control group with a memory limit of `bytes`.
    ///
    /// # Errors
    /// The memory controller of cgroup v1 is not mounted, or this user may not write to it.
    pub fn new(bytes: u64) -> Result<Self, PeerError> {
        let groups = fs::read_to_string("/proc/self/cgroup")?;
        let parent = group(&groups)
            .ok_or_else(|| PeerError::Invalid("no memory controller in /proc/self/cgroup".to_owned()))?;
        let parent = Path::new(MOUNT).join(parent.trim_start_matches('/'));
        let number = GROUPS.fetch_add(1, Relaxed);
        let own = parent.join(format!("rowmill-peer-{}-{number}", std::process::id()));
        let limit = || -> std::io::Result<()> {
            fs::create_dir(&own)?;
            fs::write(own.join("memory.limit_in_bytes"), bytes.to_string())?;
            fs::write(own.join("cgroup.procs"), std::process::id().to_string())
        };
        limit().map_err(|error| {
            // Remove a group that was created but cannot be used.
            let _ = fs::remove_dir(&own);
            PeerError::Invalid(format!(
                "only a memory control group can limit the page cache, but {} cannot be created: {error} (needs cgroup \
                 v1 with the memory controller, and root)",
                own.display()
            ))
        })?;
        Ok(Self { parent, own })
    }

    /// The highest memory use of the group so far, in bytes.
    ///
    /// # Errors
    /// The kernel's count cannot be read.
    pub fn most_bytes(&self) -> Result<u64, PeerError> {
        let text = fs::read_to_string(self.own.join("memory.max_usage_in_bytes"))?;
        text.trim().parse().map_err(|_| PeerError::Invalid(format!("max_usage_in_bytes is {text:?}")))
    }
}

/// This process's group in the memory controller of version 1.
fn group(groups: &str) -> Option<&str> {
    groups.lines().find_map(|line| {
        let (_, line) = line.split_once(':')?;
        let (controllers, path) = line.split_once(':')?;
        controllers.split(',').any(|name| name == "memory").then_some(path)
    })
}

impl Drop for MemoryLimit {
    fn drop(&mut self) {
        // A remaining group is empty and costs nothing.
        let _ = fs::write(self.parent.join("cgroup.procs"), std::process::id().to_string());
        let _ = fs::remove_dir(&self.own);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_group_of_the_memory_controller_is_found() {
        let groups = "9:pids:/a\n4:cpu,memory:/b/c:d\n0::/e\n";
        assert_eq!(group(groups), Some("/b/c:d"));
        assert_eq!(group("0::/e\n"), None);
    }
}
