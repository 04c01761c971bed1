//! The fields of a message: numbers are little-endian, bytes have their length before them.

/// The version of the messages: a node that speaks it says so in its first one.
pub const VERSION: u16 = 2;

/// The first version: what nodes and keepers of all versions say to each other.
pub const FIRST_VERSION: u16 = 1;

/// The most bytes of a message's contents.
pub const MESSAGE_BYTES_MAX: u32 = 4 << 20;

/// Bytes that are no message of these versions.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// The peer has a later version.
    #[error("a message of version {0}, and this program knows versions up to {VERSION}")]
    Version(u16),
    /// A frame's checksum is wrong.
    #[error("a message whose checksum is wrong")]
    Checksum,
    /// A frame is longer than any message.
    #[error("a message of {0} bytes, and there are at most {MESSAGE_BYTES_MAX}")]
    TooLong(u32),
    /// The contents say nothing that can be understood.
    #[error("a message with {0}")]
    Malformed(&'static str),
}

/// What reading gives.
pub(crate) type Result<T> = std::result::Result<T, WireError>;

/// Adds fields to bytes.
pub(crate) trait Put {
    fn put_u8(&mut self, value: u8);
    fn put_u16(&mut self, value: u16);
    fn put_u32(&mut self, value: u32);
    fn put_u64(&mut self, value: u64);
    /// Bytes after their length, which has 32 bits.
    fn put_bytes(&mut self, bytes: &[u8]);
}

impl Put for Vec<u8> {
    fn put_u8(&mut self, value: u8) {
        self.push(value);
    }

    fn put_u16(&mut self, value: u16) {
        self.extend_from_slice(&value.to_le_bytes());
    }

    fn put_u32(&mut self, value: u32) {
        self.extend_from_slice(&value.to_le_bytes());
    }

    fn put_u64(&mut self, value: u64) {
        self.extend_from_slice(&value.to_le_bytes());
    }

    fn put_bytes(&mut self, bytes: &[u8]) {
        self.put_u32(u32::try_from(bytes.len()).expect("messages are short"));
        self.extend_from_slice(bytes);
    }
}

/// The fields of a message that were not read yet.
pub(crate) struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    pub(crate) fn new(contents: &'a [u8]) -> Self {
        Self(contents)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let short = WireError::Malformed("fewer bytes than its fields have");
        let (field, rest) = self.0.split_first_chunk().ok_or(short)?;
        self.0 = rest;
        Ok(*field)
    }

    pub(crate) fn u8(&mut self) -> Result<u8> {
        Ok(u8::from_le_bytes(self.array()?))
    }

    pub(crate) fn u16(&mut self) -> Result<u16> {
        Ok(u16::from_le_bytes(self.array()?))
    }

    pub(crate) fn u32(&mut self) -> Result<u32> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    pub(crate) fn u64(&mut self) -> Result<u64> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    pub(crate) fn sixteen(&mut self) -> Result<[u8; 16]> {
        self.array()
    }

    /// A byte that is 0 or 1: each message has one form.
    pub(crate) fn flag(&mut self) -> Result<bool> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(WireError::Malformed("a flag that is neither 0 nor 1")),
        }
    }

    /// Bytes that have their length before them.
    pub(crate) fn bytes(&mut self) -> Result<&'a [u8]> {
        let len = usize::try_from(self.u32()?).unwrap_or(usize::MAX);
        self.exactly(len)
    }

    /// Bytes of a known number.
    pub(crate) fn exactly(&mut self, len: usize) -> Result<&'a [u8]> {
        let short = WireError::Malformed("fewer bytes than it says");
        let (bytes, rest) = self.0.split_at_checked(len).ok_or(short)?;
        self.0 = rest;
        Ok(bytes)
    }

    /// Text that has its length before it.
    pub(crate) fn text(&mut self) -> Result<String> {
        let text = std::str::from_utf8(self.bytes()?);
        text.map(str::to_owned).map_err(|_| WireError::Malformed("text that is not UTF-8"))
    }

    /// Items that have their number before them. Memory is taken as they are read.
    pub(crate) fn list<T>(
        &mut self,
        mut item: impl FnMut(&mut Self) -> Result<T>,
    ) -> Result<Vec<T>> {
        let count = self.u32()?;
        let mut items = Vec::new();
        for _ in 0..count {
            items.push(item(self)?);
        }
        Ok(items)
    }

    /// The message ends here.
    pub(crate) fn end(self) -> Result<()> {
        match self.0 {
            [] => Ok(()),
            _ => Err(WireError::Malformed("bytes after its fields")),
        }
    }
}
