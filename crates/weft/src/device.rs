//! Which piece of hardware a disk is, for the person who must find it.

use serde::{Deserialize, Serialize};
use weft_disk::Hardware;

use crate::members::Place;

/// What a disk is, and how to know it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Device {
    /// What it is.
    pub kind: DeviceKind,
    /// Of a disk reached over NBD, its URI.
    pub url: Option<String>,
    /// Of a block device, the serial number, as far as it is known.
    pub serial: Option<String>,
    /// Of a block device, its model.
    pub model: Option<String>,
    /// Of a block device, its world wide name.
    pub wwn: Option<String>,
}

/// What a disk is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DeviceKind {
    /// A block device of this machine.
    BlockDevice,
    /// A file.
    File,
    /// Reached over NBD.
    Nbd,
    /// It was not seen.
    Unknown,
}

impl Device {
    /// What stands at `place` now, where a disk was just opened.
    pub fn at(place: &str) -> Self {
        match Place::of(place) {
            Place::Uri(uri) => Self { url: Some(uri), ..Self::of_kind(DeviceKind::Nbd) },
            Place::Path(path) => match Hardware::of(&path) {
                Some(Hardware { serial, model, wwn }) => {
                    Self { serial, model, wwn, ..Self::of_kind(DeviceKind::BlockDevice) }
                }
                None => Self::of_kind(DeviceKind::File),
            },
        }
    }

    /// A disk that was not opened. What stands at its place now may be another one.
    pub fn unseen(place: &str) -> Self {
        match Place::of(place) {
            Place::Uri(_) => Self::at(place),
            Place::Path(_) => Self::of_kind(DeviceKind::Unknown),
        }
    }

    fn of_kind(kind: DeviceKind) -> Self {
        Self { kind, url: None, serial: None, model: None, wwn: None }
    }

    /// What a person reads on its label: `Samsung SSD 970 EVO, serial S4EWNX0R123456`; nothing if
    /// that is not known.
    pub fn label(&self) -> Option<String> {
        let serial = self.serial.as_ref().map(|serial| format!("serial {serial}"));
        let wwn = self.wwn.as_ref().filter(|_| serial.is_none()).map(|wwn| format!("WWN {wwn}"));
        let parts = [self.model.clone(), serial, wwn];
        let label = parts.into_iter().flatten().collect::<Vec<_>>().join(", ");
        (!label.is_empty()).then_some(label)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_is_called_by_what_stands_on_it() {
        let disk = |model: &str, serial: &str, wwn: &str| {
            let some = |text: &str| (!text.is_empty()).then(|| text.to_owned());
            let base = Device::of_kind(DeviceKind::BlockDevice);
            Device { model: some(model), serial: some(serial), wwn: some(wwn), ..base }
        };
        let label = |model, serial, wwn| disk(model, serial, wwn).label();
        assert_eq!(label("X 1", "S1", "0x5").as_deref(), Some("X 1, serial S1"));
        assert_eq!(label("", "S1", "").as_deref(), Some("serial S1"));
        assert_eq!(label("X 1", "", "0x5").as_deref(), Some("X 1, WWN 0x5"));
        assert_eq!(label("", "", ""), None);
        let remote = Device::at("nbd://host/x");
        assert_eq!((remote.kind, remote.url.as_deref()), (DeviceKind::Nbd, Some("nbd://host/x")));
        assert_eq!(Device::unseen("/dev/sdx").kind, DeviceKind::Unknown);
    }
}
