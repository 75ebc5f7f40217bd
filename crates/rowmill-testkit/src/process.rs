//! The kernel's counts for this process.
//!
//! Every count is `None` if the kernel does not provide it; tests that need it then skip with a message.

use std::fs;

/// Resident memory of this process now, in bytes.
pub fn resident_bytes() -> Option<u64> {
    status_bytes("VmRSS:")
}

/// Highest resident memory of this process so far, in bytes.
pub fn resident_bytes_peak() -> Option<u64> {
    status_bytes("VmHWM:")
}

/// Bytes that this process read from disks, without reads from the page cache.
pub fn disk_read_bytes() -> Option<u64> {
    field("/proc/self/io", "read_bytes:")
}

/// Bytes that this process wrote to disks, now or later.
pub fn disk_written_bytes() -> Option<u64> {
    field("/proc/self/io", "write_bytes:")
}

fn status_bytes(name: &str) -> Option<u64> {
    field("/proc/self/status", name).map(|kib| kib * 1024)
}

/// The first number after `name` at the start of a line.
fn field(path: &str, name: &str) -> Option<u64> {
    let content = fs::read_to_string(path).ok()?;
    let value = content.lines().find_map(|line| line.strip_prefix(name))?;
    value.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_that_is_touched_is_resident() {
        const BYTES: usize = 64 << 20;
        let Some(before) = resident_bytes() else {
            eprintln!("skipped: this kernel does not report VmRSS");
            return;
        };
        let memory = vec![1_u8; BYTES];
        let grown = resident_bytes().unwrap().saturating_sub(before);
        assert!(grown > BYTES as u64 * 9 / 10, "{grown}");
        assert!(resident_bytes_peak().unwrap() >= before + grown);
        drop(memory);
        assert!(resident_bytes().unwrap() < before + grown);
    }

    #[test]
    fn writes_are_counted_and_cached_reads_are_not() {
        let Some(written) = disk_written_bytes() else {
            eprintln!("skipped: this kernel does not report disk reads and writes");
            return;
        };
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), vec![1; 1 << 20]).unwrap();
        file.as_file().sync_all().unwrap();
        if disk_written_bytes().unwrap() == written {
            eprintln!("skipped: {} is not on a disk", file.path().display());
            return;
        }
        assert!(disk_written_bytes().unwrap() >= written + (1 << 20));
        let read = disk_read_bytes().unwrap();
        assert_eq!(fs::read(file.path()).unwrap().len(), 1 << 20);
        assert!(disk_read_bytes().unwrap() < read + (1 << 20));
    }
}
