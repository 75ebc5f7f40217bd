//! The names by which hosts recognize the data of a subsystem.

use std::io::Read;

use ring::rand::{SecureRandom, SystemRandom};
use rowmill_io::{DeviceError, Volume};
use serde::{Deserialize, Serialize};

const FILE: &str = "identity.json";
const FILE_NEW: &str = "identity.json.new";

/// What hosts recognize a node's data by. It is made once and stays with the data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// The subsystem, by a UUID.
    pub subsystem: [u8; 16],
    /// The namespace, by a UUID.
    pub namespace: [u8; 16],
}

/// Why an identity cannot be read or made.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    /// The volume failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The file could not be read or written.
    #[error("{path}: {cause}")]
    File {
        /// The file.
        path: String,
        /// The error of the system.
        cause: std::io::Error,
    },
    /// The file has another content.
    #[error("{path} is damaged ({cause}): restore it from a copy, or hosts take the data for another disk")]
    Damaged {
        /// The file.
        path: String,
        /// The error in the content.
        cause: serde_json::Error,
    },
    /// The system gave no random numbers.
    #[error("the system gives no random numbers")]
    NoRandom,
}

impl Identity {
    /// The identity of a folder. A new folder gets a new one, which is durable when this returns.
    ///
    /// # Errors
    ///
    /// See [`IdentityError`].
    pub fn load(volume: &dyn Volume) -> Result<Identity, IdentityError> {
        let file_error = |cause| IdentityError::File { path: volume.path(FILE), cause };
        match volume.open(FILE) {
            Ok(mut file) => {
                let mut text = String::new();
                file.read_to_string(&mut text).map_err(file_error)?;
                serde_json::from_str(&text)
                    .map_err(|cause| IdentityError::Damaged { path: volume.path(FILE), cause })
            }
            Err(DeviceError::Missing { .. }) => {
                let identity = Identity { subsystem: uuid()?, namespace: uuid()? };
                let mut file = volume.create(FILE_NEW)?;
                serde_json::to_writer(&mut file, &identity).map_err(|cause| file_error(cause.into()))?;
                file.sync()?;
                drop(file);
                volume.rename(FILE_NEW, FILE)?;
                volume.sync()?;
                Ok(identity)
            }
            Err(error) => Err(error.into()),
        }
    }
}

/// A random UUID (version 4).
fn uuid() -> Result<[u8; 16], IdentityError> {
    let mut uuid = [0; 16];
    SystemRandom::new().fill(&mut uuid).map_err(|_| IdentityError::NoRandom)?;
    uuid[6] = uuid[6] & 0x0f | 0x40;
    uuid[8] = uuid[8] & 0x3f | 0x80;
    Ok(uuid)
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use rowmill_io::MemoryVolume;

    use super::*;

    #[test]
    fn an_identity_is_made_once() {
        let volume = MemoryVolume::new();
        let made = Identity::load(&volume).unwrap();
        assert_eq!(Identity::load(&volume).unwrap(), made);
        assert_ne!(Identity::load(&MemoryVolume::new()).unwrap(), made);
        assert_eq!((made.subsystem[6] >> 4, made.subsystem[8] >> 6), (4, 2));
        volume.create(FILE).unwrap().write_all(b"{}").unwrap();
        assert!(matches!(Identity::load(&volume), Err(IdentityError::Damaged { .. })));
    }
}
