//! Keys of hosts and controllers.

use std::fmt;
use std::str::FromStr;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use ring::hmac;

use super::Hash;
use crate::command::Nqn;

/// A secret of a host or a controller, as `nvme gen-dhchap-key` writes it: `DHHC-1:01:<base64>:`. It is not shown in logs.
#[derive(Clone, PartialEq, Eq)]
pub struct Key {
    /// The hash by which the secret is bound to a name; none, if the secret is used unchanged.
    hash: Option<Hash>,
    secret: Vec<u8>,
}

/// Why a text is no key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// It has another form.
    #[error("a key has the form \"DHHC-1:<00 to 03>:<base64>:\"; nvme gen-dhchap-key makes one")]
    Form,
    /// The secret has a wrong length.
    #[error(
        "the secret of a key has 32, 48 or 64 bytes, and with a hash as many as the hash; this one has {0}"
    )]
    Length(usize),
    /// The checksum is wrong.
    #[error("the checksum of the key is wrong: copy the whole key, or make a new one")]
    Checksum,
}

const CHECKSUM_BYTES: usize = 4;

impl FromStr for Key {
    type Err = KeyError;

    fn from_str(text: &str) -> Result<Key, KeyError> {
        let parts: Vec<&str> = text.trim_end_matches(':').split(':').collect();
        let [magic, hash, secret] = parts[..] else { return Err(KeyError::Form) };
        let number: u8 = hash.parse().map_err(|_| KeyError::Form)?;
        let hash = Hash::from_byte(number);
        if magic != "DHHC-1" || (hash.is_none() && number != 0) {
            return Err(KeyError::Form);
        }
        let mut secret = STANDARD.decode(secret).map_err(|_| KeyError::Form)?;
        let bytes = secret.len().saturating_sub(CHECKSUM_BYTES);
        let has_length = hash.map_or(matches!(bytes, 32 | 48 | 64), |hash| hash.bytes() == bytes);
        if !has_length {
            return Err(KeyError::Length(bytes));
        }
        let checksum = secret.split_off(bytes);
        if checksum != crc32(&secret).to_le_bytes() {
            return Err(KeyError::Checksum);
        }
        Ok(Key { hash, secret })
    }
}

impl Key {
    /// The key of HMAC with `hash`, for the owner of the secret.
    pub(super) fn bind(&self, hash: Hash, owner: &Nqn) -> hmac::Key {
        let Some(own) = self.hash else { return hmac::Key::new(hash.algorithm(), &self.secret) };
        let mut context = hmac::Context::with_key(&hmac::Key::new(own.algorithm(), &self.secret));
        context.update(owner.as_str().as_bytes());
        context.update(b"NVMe-over-Fabrics");
        hmac::Key::new(hash.algorithm(), context.sign().as_ref())
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(..)")
    }
}

/// CRC-32 as in zip files. Keys are short.
fn crc32(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(u32::MAX, |crc, &byte| {
        (0..8).fold(
            crc ^ u32::from(byte),
            |crc, _| if crc & 1 == 1 { crc >> 1 ^ 0xedb8_8320 } else { crc >> 1 },
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(number: u8, secret: &[u8]) -> String {
        let bytes = [secret, &crc32(secret).to_le_bytes()].concat();
        format!("DHHC-1:{number:02}:{}:", STANDARD.encode(bytes))
    }

    #[test]
    fn the_checksum_is_that_of_zip_files() {
        assert_eq!(crc32(b"123456789"), 0xcbf4_3926);
    }

    #[test]
    fn keys_of_every_length_are_read() {
        for (number, bytes) in [(0, 32), (0, 48), (0, 64), (1, 32), (2, 48), (3, 64)] {
            let key: Key = text(number, &vec![7; bytes]).parse().unwrap();
            assert_eq!((key.secret.len(), key.hash), (bytes, Hash::from_byte(number)));
            assert_eq!(format!("{key:?}"), "Key(..)");
        }
    }

    #[test]
    fn other_texts_are_refused_with_their_reason() {
        let parse = |text: &str| text.parse::<Key>();
        let good = text(1, &[7; 32]);
        assert_eq!(parse(&good.replace("DHHC-1", "DHHC-2")), Err(KeyError::Form));
        assert_eq!(parse(&good.replace(":01:", ":04:")), Err(KeyError::Form));
        assert_eq!(parse(&good.replace(":01:", ":x:")), Err(KeyError::Form));
        assert_eq!(parse("DHHC-1:01:%%:"), Err(KeyError::Form));
        assert_eq!(parse("DHHC-1:01"), Err(KeyError::Form));
        assert_eq!(parse(&good.replace(":01:", ":02:")), Err(KeyError::Length(32)));
        assert_eq!(parse(&text(0, &[7; 31])), Err(KeyError::Length(31)));
        assert_eq!(parse(&good.replacen('B', "C", 1)), Err(KeyError::Checksum));
    }
}
