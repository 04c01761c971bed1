//! Which piece of hardware a disk is, so that a person can find it.

use serde::{Deserialize, Serialize};
use weft_cli::disks::DiskAddress;
use weft_disk::Hardware;

/// What a disk is, and how to recognise it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Device {
    /// Its kind.
    pub kind: DeviceKind,
    /// The URI of a disk reached over NBD.
    pub url: Option<String>,
    /// The serial number of a block device, as far as it is known.
    pub serial: Option<String>,
    /// The model of a block device.
    pub model: Option<String>,
    /// The world wide name of a block device.
    pub wwn: Option<String>,
}

/// Kinds of disks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DeviceKind {
    /// A block device of this machine.
    BlockDevice,
    /// A file.
    File,
    /// Reached over NBD.
    Nbd,
    /// Not known: the disk was not opened.
    Unknown,
}

impl Device {
    /// The disk at `place`, which was just opened.
    pub fn at(place: &str) -> Self {
        match DiskAddress::of(place) {
            DiskAddress::Uri(uri) => Self { url: Some(uri), ..Self::of_kind(DeviceKind::Nbd) },
            DiskAddress::Path(path) => match Hardware::of(&path) {
                Some(Hardware { serial, model, wwn }) => {
                    Self { serial, model, wwn, ..Self::of_kind(DeviceKind::BlockDevice) }
                }
                None => Self::of_kind(DeviceKind::File),
            },
        }
    }

    /// A disk that was not opened. The disk at its place now may be another one.
    pub fn unseen(place: &str) -> Self {
        match DiskAddress::of(place) {
            DiskAddress::Uri(_) => Self::at(place),
            DiskAddress::Path(_) => Self::of_kind(DeviceKind::Unknown),
        }
    }

    fn of_kind(kind: DeviceKind) -> Self {
        Self { kind, url: None, serial: None, model: None, wwn: None }
    }

    /// The text of its printed label: `Samsung SSD 970 EVO, serial S4EWNX0R123456`; `None` if that
    /// is not known.
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
