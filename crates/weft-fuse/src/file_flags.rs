//! What `lsattr` shows and `chattr` sets. The kernel asks by IOCTL, after it has looked who may set
//! it; what the flags forbid, weft-fs refuses.

use rustix::io::Errno;
use weft_fs::{Flags, Fs, Ino};
use zerocopy::IntoBytes as _;

use crate::answer::{Answer, errno_of, parse};
use crate::wire::{FsXattr, IoctlIn, IoctlOut, ioctl};

/// The bits of the two kinds of requests.
const XFLAGS: [(Flags, u32); 4] = [
    (Flags::IMMUTABLE, 0x08),
    (Flags::APPEND, 0x10),
    (Flags::NOATIME, 0x40),
    (Flags::NODUMP, 0x80),
];

/// Whether an IOCTL sets flags.
pub(crate) fn sets(body: &[u8]) -> bool {
    let cmd = parse::<IoctlIn>(body).map(|(asked, _)| asked.cmd);
    cmd.is_ok_and(|cmd| matches!(cmd, ioctl::SETFLAGS | ioctl::FSSETXATTR))
}

/// Answers an IOCTL.
pub(crate) async fn carry_out(fs: &Fs, ino: Ino, body: &[u8]) -> Answer {
    let (IoctlIn { cmd, .. }, given) = parse::<IoctlIn>(body)?;
    match cmd {
        ioctl::GETFLAGS => {
            let flags = fs.attr(ino).await.map_err(errno_of)?.flags;
            Ok(done(&flags.bits().to_ne_bytes()))
        }
        ioctl::SETFLAGS => {
            let (bits, _) = parse::<u32>(given)?;
            let flags = Flags::from_bits(bits).ok_or(Errno::OPNOTSUPP)?;
            fs.set_flags(ino, flags).await.map_err(errno_of)?;
            Ok(done(&[]))
        }
        ioctl::FSGETXATTR => {
            let flags = fs.attr(ino).await.map_err(errno_of)?.flags;
            let set = XFLAGS.iter().filter(|(flag, _)| flags.contains(*flag));
            let xflags = set.map(|(_, bit)| bit).sum();
            Ok(done(FsXattr { xflags, ..FsXattr::default() }.as_bytes()))
        }
        ioctl::FSSETXATTR => {
            let (wanted, _) = parse::<FsXattr>(given)?;
            let known: u32 = XFLAGS.iter().map(|(_, bit)| bit).sum();
            if wanted.xflags & !known != 0
                || wanted.extsize | wanted.projid | wanted.cowextsize != 0
            {
                return Err(Errno::OPNOTSUPP);
            }
            let set = XFLAGS.iter().filter(|(_, bit)| wanted.xflags & bit != 0);
            let flags = Flags::from_bits(set.map(|(flag, _)| flag.bits()).sum());
            fs.set_flags(ino, flags.unwrap_or_default()).await.map_err(errno_of)?;
            Ok(done(&[]))
        }
        _ => Err(Errno::NOTTY),
    }
}

/// It is done, and returns this.
fn done(returned: &[u8]) -> Vec<u8> {
    [IoctlOut::default().as_bytes(), returned].concat()
}
