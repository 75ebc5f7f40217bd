//! A limit of the kernel on the memory of this process, its page cache included.

use std::fs;
use std::path::{Path, PathBuf};

use crate::settings::Failure;

/// Where control groups of version 1 are mounted.
const MOUNT: &str = "/sys/fs/cgroup/memory";

/// A memory control group with this process alone; dropping it lifts the limit. What the process took
/// before does not count.
pub(super) struct MemoryLimit {
    parent: PathBuf,
    own: PathBuf,
}

impl MemoryLimit {
    /// # Errors
    /// Where the memory controller of cgroup v1 is not mounted, or not ours to write.
    pub(super) fn new(bytes: u64) -> Result<Self, Failure> {
        let groups = fs::read_to_string("/proc/self/cgroup")?;
        let parent = group(&groups).ok_or("no memory controller in /proc/self/cgroup")?;
        let parent = Path::new(MOUNT).join(parent.trim_start_matches('/'));
        let own = parent.join(format!("rowmill-bench-{}", std::process::id()));
        let limit = || -> std::io::Result<()> {
            fs::create_dir(&own)?;
            fs::write(own.join("memory.limit_in_bytes"), bytes.to_string())?;
            fs::write(own.join("cgroup.procs"), std::process::id().to_string())
        };
        limit().map_err(|error| {
            format!(
                "LMDB's memory is the page cache, which only a memory control group limits, and {} cannot be \
                 made: {error} (cgroup v1 with the memory controller, and root, are needed)",
                own.display()
            )
        })?;
        Ok(Self { parent, own })
    }
}

/// This process's group of the memory controller of version 1.
fn group(groups: &str) -> Option<&str> {
    groups.lines().find_map(|line| {
        let (_, line) = line.split_once(':')?;
        let (controllers, path) = line.split_once(':')?;
        controllers.split(',').any(|name| name == "memory").then_some(path)
    })
}

impl Drop for MemoryLimit {
    fn drop(&mut self) {
        // A group that stays behind is empty and costs nothing.
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
