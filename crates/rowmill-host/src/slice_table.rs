//! The file that says which slices of a device belong to which device of the volume. It is replaced as a whole.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};

use rowmill_io::{DeviceError, Volume, seal, unseal};
use serde::{Deserialize, Serialize};

/// The file, and the next one while it is written.
pub(crate) const FILE: &str = "SLICES";
pub(crate) const FILE_NEW: &str = "SLICES.new";

const MAGIC: &str = "rowmill-slices";
const VERSION: u32 = 1;

/// A slice of a device: its number, and how many of its blocks were written. The others read as zeros.
pub(crate) type SavedSlice = (u32, u32);

/// A device of the volume.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SavedDevice {
    pub(crate) bytes: u64,
    /// In order; holes have no slice.
    pub(crate) slices: Vec<Option<SavedSlice>>,
}

/// The content of the file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SliceTable {
    /// A random name, which the label on the device has too.
    pub(crate) id: String,
    pub(crate) slice_bytes: u64,
    pub(crate) devices: BTreeMap<String, SavedDevice>,
}

impl SliceTable {
    /// The table of a folder; `None` if it has none.
    pub(crate) fn load(local: &dyn Volume) -> Result<Option<SliceTable>, DeviceError> {
        let mut file = match local.open(FILE) {
            Ok(file) => file,
            Err(DeviceError::Missing { .. }) => return Ok(None),
            Err(error) => return Err(error),
        };
        let failed = |error| DeviceError::from_io("read", local.path(FILE), 0, 0, error);
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).map_err(failed)?;
        parse(&bytes).map(Some).map_err(|reason| {
            let advice =
                "restore the folder from a copy: without the table, nothing of the namespace can be found";
            failed(io::Error::new(io::ErrorKind::InvalidData, format!("{reason}; {advice}")))
        })
    }

    /// Replace the table of a folder. It is durable afterwards.
    pub(crate) fn save(&self, local: &dyn Volume) -> Result<(), DeviceError> {
        let failed = |error| DeviceError::from_io("write", local.path(FILE_NEW), 0, 0, error);
        let json = serde_json::to_vec(self).map_err(|error| failed(error.into()))?;
        let mut file = local.create(FILE_NEW)?;
        file.write_all(&seal(MAGIC, VERSION, &json)).map_err(failed)?;
        file.sync()?;
        drop(file);
        // The name must be durable before it replaces the old table.
        local.sync()?;
        local.rename(FILE_NEW, FILE)?;
        local.sync()
    }
}

fn parse(bytes: &[u8]) -> Result<SliceTable, String> {
    let sealed = unseal(MAGIC, bytes)?;
    if sealed.version != VERSION {
        return Err(format!("it has format {}, this build reads {VERSION}", sealed.version));
    }
    if !sealed.is_whole {
        return Err("its checksum is wrong".into());
    }
    serde_json::from_slice(sealed.content).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use rowmill_io::MemoryVolume;

    use super::*;

    #[test]
    fn a_table_survives_its_file_and_damage_is_told() {
        let local = MemoryVolume::new();
        assert_eq!(SliceTable::load(&local).unwrap(), None);
        let device = SavedDevice { bytes: 5 << 20, slices: vec![Some((7, 256)), None, Some((1, 3))] };
        let devices = [("log".to_owned(), device)].into();
        let table = SliceTable { id: "id".into(), slice_bytes: 1 << 20, devices };
        table.save(&local).unwrap();
        assert_eq!(SliceTable::load(&local).unwrap().as_ref(), Some(&table));
        let mut bytes = Vec::new();
        local.open(FILE).unwrap().read_to_end(&mut bytes).unwrap();
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1;
            local.create(FILE).unwrap().write_all(&damaged).unwrap();
            assert!(SliceTable::load(&local).is_err(), "byte {at}");
        }
    }
}
