//! NBD URIs: where a server is, and which of its exports is meant.
//!
//! `nbd://host[:port]/export` and `nbd+unix:///export?socket=PATH`, as "The NBD URI
//! specification" (doc/uri.md of the network block device project) has them. An empty export is
//! the server's default. Characters may be percent-encoded.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use crate::proto::NAME_BYTES_MAX;
use crate::server::DEFAULT_PORT;

/// Where a server listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NbdAddress {
    /// A host (a name or a literal address, without brackets) and a port.
    Tcp(String, u16),
    /// The path of a Unix socket.
    Unix(PathBuf),
}

/// A server and an export of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NbdUri {
    /// The server.
    pub address: NbdAddress,
    /// The export's name; empty: the server's default.
    pub export: String,
}

/// Why a text is no NBD URI.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UriError {
    /// Another scheme.
    #[error("an NBD URI starts with nbd:// or nbd+unix://")]
    Scheme,
    /// TLS or vsock.
    #[error(
        "{0}:// is not supported; use nbd:// or nbd+unix:// (through a tunnel, if it must be encrypted)"
    )]
    Unsupported(String),
    /// `nbd://` without a host.
    #[error("the host is missing: nbd://host[:port]/export")]
    NoHost,
    /// The port is no number from 1 to 65535.
    #[error("{0:?} is not a port")]
    Port(String),
    /// An IPv6 address needs brackets.
    #[error("an IPv6 address stands in brackets: nbd://[::1]:10809/export")]
    Brackets,
    /// `nbd+unix://` without a socket.
    #[error("the socket is missing: nbd+unix:///export?socket=PATH")]
    NoSocket,
    /// `nbd+unix://` with a host.
    #[error("nbd+unix has no host: write nbd+unix:///export?socket=PATH, with three slashes")]
    HostOnUnix,
    /// A parameter that means nothing here.
    #[error("unknown parameter {0:?}")]
    Parameter(String),
    /// A `%` that is not followed by two hex digits, or bytes that are not UTF-8.
    #[error("bad percent-encoding in {0:?}")]
    Encoding(String),
    /// The export's name is too long.
    #[error("the export's name is longer than {NAME_BYTES_MAX} bytes")]
    ExportTooLong,
    /// A `#` part.
    #[error("an NBD URI has no fragment; write # as %23")]
    Fragment,
}

impl FromStr for NbdUri {
    type Err = UriError;

    fn from_str(text: &str) -> Result<Self, UriError> {
        let (scheme, rest) = text.split_once("://").ok_or(UriError::Scheme)?;
        if rest.contains('#') {
            return Err(UriError::Fragment);
        }
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, export) = rest.split_once('/').unwrap_or((rest, ""));
        let export = decode(export)?;
        if export.len() > NAME_BYTES_MAX {
            return Err(UriError::ExportTooLong);
        }
        let socket = socket_of(query)?;
        let address = match scheme {
            "nbd" => match socket {
                None => tcp(authority)?,
                Some(_) => return Err(UriError::Parameter("socket".to_owned())),
            },
            "nbd+unix" if !authority.is_empty() => return Err(UriError::HostOnUnix),
            "nbd+unix" => NbdAddress::Unix(socket.ok_or(UriError::NoSocket)?.into()),
            "nbds" | "nbds+unix" | "nbd+vsock" | "nbds+vsock" => {
                return Err(UriError::Unsupported(scheme.to_owned()));
            }
            _ => return Err(UriError::Scheme),
        };
        Ok(Self { address, export })
    }
}

fn socket_of(query: &str) -> Result<Option<String>, UriError> {
    let mut socket = None;
    for parameter in query.split('&').filter(|parameter| !parameter.is_empty()) {
        let (key, value) = parameter.split_once('=').unwrap_or((parameter, ""));
        if key != "socket" || value.is_empty() || socket.is_some() {
            return Err(UriError::Parameter(key.to_owned()));
        }
        socket = Some(decode(value)?);
    }
    Ok(socket)
}

fn tcp(authority: &str) -> Result<NbdAddress, UriError> {
    let (host, port) = if let Some(rest) = authority.strip_prefix('[') {
        let (host, after) = rest.split_once(']').ok_or(UriError::Brackets)?;
        let port = match after {
            "" => None,
            _ => Some(after.strip_prefix(':').ok_or(UriError::Brackets)?),
        };
        (host, port)
    } else {
        match authority.split_once(':') {
            Some((_, port)) if port.contains(':') => return Err(UriError::Brackets),
            Some((host, port)) => (host, Some(port)),
            None => (authority, None),
        }
    };
    let port = match port {
        None | Some("") => DEFAULT_PORT,
        Some(digits) => digits
            .parse()
            .ok()
            .filter(|port| *port != 0 && digits.bytes().all(|byte| byte.is_ascii_digit()))
            .ok_or_else(|| UriError::Port(digits.to_owned()))?,
    };
    let host = decode(host)?;
    if host.is_empty() { Err(UriError::NoHost) } else { Ok(NbdAddress::Tcp(host, port)) }
}

fn decode(text: &str) -> Result<String, UriError> {
    let bad = || UriError::Encoding(text.to_owned());
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, after @ ..] = rest {
        rest = after;
        if *first != b'%' {
            bytes.push(*first);
            continue;
        }
        let [high, low, after @ ..] = rest else { return Err(bad()) };
        let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|n| u8::try_from(n).ok());
        let (high, low) = digit(*high).zip(digit(*low)).ok_or_else(bad)?;
        bytes.push(high << 4 | low);
        rest = after;
    }
    String::from_utf8(bytes).ok().filter(|text| !text.contains('\0')).ok_or_else(bad)
}

fn encode(text: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~/:@!$'()*+,;".contains(&byte) {
            write!(f, "{}", char::from(byte))?;
        } else {
            write!(f, "%{byte:02X}")?;
        }
    }
    Ok(())
}

impl fmt::Display for NbdUri {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = |path: &Path| path.to_string_lossy().into_owned();
        match &self.address {
            NbdAddress::Tcp(host, port) if host.contains(':') => {
                write!(f, "nbd://[{host}]:{port}/")?
            }
            NbdAddress::Tcp(host, port) => write!(f, "nbd://{host}:{port}/")?,
            NbdAddress::Unix(_) => f.write_str("nbd+unix:///")?,
        }
        encode(&self.export, f)?;
        if let NbdAddress::Unix(socket) = &self.address {
            f.write_str("?socket=")?;
            encode(&path(socket), f)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<NbdUri, UriError> {
        text.parse()
    }

    fn tcp(host: &str, port: u16, export: &str) -> Result<NbdUri, UriError> {
        let address = NbdAddress::Tcp(host.to_owned(), port);
        Ok(NbdUri { address, export: export.to_owned() })
    }

    fn unix(path: &str, export: &str) -> Result<NbdUri, UriError> {
        Ok(NbdUri { address: NbdAddress::Unix(path.into()), export: export.to_owned() })
    }

    #[test]
    fn good_uris_are_understood_and_written_again() {
        let good = [
            ("nbd://localhost", tcp("localhost", 10809, "")),
            ("nbd://localhost/", tcp("localhost", 10809, "")),
            ("nbd://10.0.0.1:99/a/b", tcp("10.0.0.1", 99, "a/b")),
            ("nbd://[fe80::1%25eth0]:99/x", tcp("fe80::1%eth0", 99, "x")),
            ("nbd://h/two%20words", tcp("h", 10809, "two words")),
            ("nbd+unix:///?socket=/run/s", unix("/run/s", "")),
            ("nbd+unix:///a%3Fb?socket=/run/a%26b", unix("/run/a&b", "a?b")),
        ];
        for (text, uri) in good {
            assert_eq!(parse(text), uri, "{text}");
            let written = uri.as_ref().map(ToString::to_string).unwrap_or_default();
            if !written.contains('%') || !text.contains("eth0") {
                assert_eq!(parse(&written), uri, "{written}");
            }
        }
    }

    #[test]
    fn bad_uris_are_refused_with_the_reason() {
        let bad = [
            ("", UriError::Scheme),
            ("http://h/x", UriError::Scheme),
            ("nbds://h/x", UriError::Unsupported("nbds".to_owned())),
            ("nbd:///x", UriError::NoHost),
            ("nbd://h:0/x", UriError::Port("0".to_owned())),
            ("nbd://h:99999/x", UriError::Port("99999".to_owned())),
            ("nbd://h:+9/x", UriError::Port("+9".to_owned())),
            ("nbd://::1/x", UriError::Brackets),
            ("nbd://[::1/x", UriError::Brackets),
            ("nbd+unix:///x", UriError::NoSocket),
            ("nbd+unix://x?socket=/s", UriError::HostOnUnix),
            ("nbd://h/x?tls-psk-file=y", UriError::Parameter("tls-psk-file".to_owned())),
            ("nbd://h/x?socket=y", UriError::Parameter("socket".to_owned())),
            ("nbd://h/%zz", UriError::Encoding("%zz".to_owned())),
            ("nbd://h/%f", UriError::Encoding("%f".to_owned())),
            ("nbd://h/%ff", UriError::Encoding("%ff".to_owned())),
            ("nbd://h/a%00", UriError::Encoding("a%00".to_owned())),
            ("nbd://h/a#b", UriError::Fragment),
        ];
        for (text, error) in bad {
            assert_eq!(parse(text), Err(error), "{text}");
        }
        let long = format!("nbd://h/{}", "x".repeat(4097));
        assert_eq!(parse(&long), Err(UriError::ExportTooLong));
    }
}
