//! Addresses on which commands serve NBD over TCP.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use crate::failure::{Failure, Outcome};

/// The port that IANA has assigned to NBD.
const NBD_PORT: u16 = 10809;

/// Where a command serves NBD over TCP.
#[derive(Debug, Clone, clap::Args)]
pub struct ListenArgs {
    /// Listen on TCP; even on loopback, every local user can then read and write what is served
    #[arg(
        long,
        num_args = 0..=1,
        default_missing_value = "127.0.0.1",
        value_parser = parse,
        value_name = "ADDR[:PORT]"
    )]
    pub listen: Option<SocketAddr>,
    /// Allow --listen on an address that other machines can reach: weft's NBD has no authentication
    /// and no encryption
    #[arg(long, requires = "listen")]
    pub allow_remote: bool,
}

impl ListenArgs {
    /// Refuses an address that other machines can reach, unless that was asked for explicitly.
    ///
    /// # Errors
    /// As [`refuse_remote`].
    pub fn check(&self) -> Outcome {
        refuse_remote(self.listen, self.allow_remote)
    }
}

/// Reads an address: `127.0.0.1`, `[::1]:10810`, `localhost`.
///
/// # Errors
/// What to write instead.
pub fn parse(text: &str) -> Result<SocketAddr, String> {
    let wrong = || {
        "give an IP address of this machine, with or without a port, such as 127.0.0.1:10809 or [::1]"
            .to_owned()
    };
    let (host, port) = match text.rsplit_once(':') {
        Some((host, port)) if !host.contains(':') || host.ends_with(']') => {
            (host, port.parse().map_err(|_| wrong())?)
        }
        _ => (text, NBD_PORT),
    };
    let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    let ip = match bare {
        "localhost" => IpAddr::V4(Ipv4Addr::LOCALHOST),
        _ => bare.parse().map_err(|_| wrong())?,
    };
    Ok(SocketAddr::new(ip, port))
}

/// Refuses an address that other machines can reach, unless that was asked for explicitly.
///
/// # Errors
/// If `allowed` is false and the address is not of this machine only.
pub fn refuse_remote(listen: Option<SocketAddr>, allowed: bool) -> Outcome {
    match listen {
        Some(address) if !address.ip().is_loopback() && !allowed => {
            Err(Failure::usage(format!(
                "other machines can reach {address}, and weft's NBD has no authentication and no encryption"
            ))
            .hint("listen on 127.0.0.1 and use a tunnel, or add --allow-remote if you trust the network"))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn addresses_are_read_as_people_write_them() {
        let cases = [
            ("127.0.0.1", "127.0.0.1:10809"),
            ("127.0.0.1:1", "127.0.0.1:1"),
            ("0.0.0.0", "0.0.0.0:10809"),
            ("localhost", "127.0.0.1:10809"),
            ("localhost:7000", "127.0.0.1:7000"),
            ("::1", "[::1]:10809"),
            ("[::1]", "[::1]:10809"),
            ("[::1]:7000", "[::1]:7000"),
        ];
        for (text, address) in cases {
            assert_eq!(parse(text).map(|a| a.to_string()), Ok(address.to_owned()), "{text}");
        }
        for text in ["", "here", "127.0.0.1:", "127.0.0.1:99999", "[::1", "1.2.3"] {
            assert!(parse(text).is_err(), "{text} was taken for an address");
        }
    }
}
