//! Content behind a header line that every build can read, whatever the version of the content:
//!
//! ```text
//! <magic> <format version> <CRC32C of the content, 8 hexadecimal digits> <bytes of the content>
//! ```

use crate::checksum::crc32c;

/// Upper bound of the header line's length, in bytes.
const HEADER_BYTES_MAX: usize = 80;

/// Sealed content as found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sealed<'a> {
    /// Version in the header line.
    pub version: u32,
    /// The bytes after the header line.
    pub content: &'a [u8],
    /// Whether version, checksum and length match this content. The checksum does not cover the version.
    pub is_whole: bool,
}

/// The content, preceded by its header line.
pub fn seal(magic: &str, version: u32, content: &[u8]) -> Vec<u8> {
    let mut bytes = header_line(magic, version, content).into_bytes();
    bytes.extend_from_slice(content);
    bytes
}

/// Parse bytes that [`seal`] wrote.
///
/// # Errors
/// What is wrong with the header line.
pub fn unseal<'a>(magic: &str, bytes: &'a [u8]) -> Result<Sealed<'a>, String> {
    let head = &bytes[..bytes.len().min(HEADER_BYTES_MAX)];
    let end = head.iter().position(|&byte| byte == b'\n').ok_or("it has no header line")?;
    let (line, content) = bytes.split_at(end + 1);
    let line = str::from_utf8(line).map_err(|_| "its header line is not text")?;
    let mut words = line.split_ascii_whitespace();
    if words.next() != Some(magic) {
        return Err(format!("it does not begin with {magic}"));
    }
    let version = words.next().and_then(|word| word.parse().ok()).ok_or("it has no version")?;
    // Formatting the parsed values again must reproduce the line. This rejects other spellings of the length
    // or checksum, and version 0.
    let is_whole = version > 0 && line == header_line(magic, version, content);
    Ok(Sealed { version, content, is_whole })
}

fn header_line(magic: &str, version: u32, content: &[u8]) -> String {
    format!("{magic} {version} {:08x} {}\n", crc32c(content), content.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_intact_sealed_content_is_accepted() {
        let sealed = seal("letter", 3, b"hello");
        assert_eq!(sealed, b"letter 3 9a71bb4c 5\nhello");
        assert_eq!(unseal("letter", &sealed), Ok(Sealed { version: 3, content: b"hello", is_whole: true }));
        for position in 0..sealed.len() {
            let mut damaged = sealed.clone();
            damaged[position] ^= 1;
            // A changed version is not detected here; the reader compares it with the version inside the
            // content.
            let passes = unseal("letter", &damaged).is_ok_and(|found| found.is_whole && found.version == 3);
            assert!(!passes, "byte {position}");
        }
        for spelling in
            ["letter 3 9A71BB4C 5\nhello", "letter 3 9a71bb4c 05\nhello", "letter 0 9a71bb4c 5\nhello"]
        {
            assert!(!unseal("letter", spelling.as_bytes()).unwrap().is_whole, "{spelling}");
        }
        assert!(unseal("letter", b"postcard 3 9a71bb4c 5\nhello").is_err() && unseal("letter", b"").is_err());
    }
}
