//! What the kernel counts for this process.
//!
//! Every count is `None` where the kernel does not tell it; a test that needs it then skips and says so.

use std::fs;

/// Memory of this process that is in RAM now.
pub fn resident_bytes() -> Option<u64> {
    status_bytes("VmRSS:")
}

/// The most memory of this process that ever was in RAM.
pub fn resident_bytes_peak() -> Option<u64> {
    status_bytes("VmHWM:")
}

/// Bytes that this process made the disks read; what came from the page cache is not among them.
pub fn disk_read_bytes() -> Option<u64> {
    field("/proc/self/io", "read_bytes:")
}

/// Bytes that this process made the disks write, now or later.
pub fn disk_written_bytes() -> Option<u64> {
    field("/proc/self/io", "write_bytes:")
}

fn status_bytes(name: &str) -> Option<u64> {
    field("/proc/self/status", name).map(|kib| kib * 1024)
}

/// The first number behind `name` at the beginning of a line.
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
            eprintln!("skipped: this kernel does not tell VmRSS");
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
            eprintln!("skipped: this kernel does not tell disk reads and writes");
            return;
        };
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), vec![1; 1 << 20]).unwrap();
        file.as_file().sync_all().unwrap();
        if disk_written_bytes().unwrap() == written {
            eprintln!("skipped: {} is no disk", file.path().display());
            return;
        }
        assert!(disk_written_bytes().unwrap() >= written + (1 << 20));
        let read = disk_read_bytes().unwrap();
        assert_eq!(fs::read(file.path()).unwrap().len(), 1 << 20);
        assert!(disk_read_bytes().unwrap() < read + (1 << 20));
    }
}
