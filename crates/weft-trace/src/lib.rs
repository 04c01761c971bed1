//! Block traces: reading, generating and replaying them.
//!
//! A trace is a stream of [`Record`]s from any source: a file in one of the [`Format`]s ([`open`]),
//! a generator ([`generate`]), or an excerpt that is repeated. Everything streams: no part of this
//! crate holds a whole trace.
//!
//! [`replay::run`] issues the requests to any [`weft_disk::Disk`] on any executor of [`weft_rt`],
//! in real or in virtual time, and measures the answers.
//!
//! ```
//! use weft_trace::generate::workload;
//!
//! let financial = workload("financial1").expect("it comes with the crate");
//! let records: Vec<_> = financial.generate(1).take(3).collect();
//! let again: Vec<_> = financial.generate(1).take(3).collect();
//! assert_eq!(records, again); // the same seed, the same requests
//! ```
#![forbid(unsafe_code)]

mod error;
mod fault;
mod fields;
mod footprint;
mod format;
mod formats;
pub mod generate;
mod info;
mod input;
mod lines;
mod reader;
mod record;
pub mod replay;
mod sniff;

pub use error::TraceError;
pub use fault::{Fault, TracePosition};
pub use format::Format;
pub use formats::weft::{HEADER, Writer};
pub use info::{DeviceInfo, Info, Sizes, Survey};
pub use input::{Progress, WINDOW_BYTES_MAX};
pub use reader::{ReadOptions, ReadStats, Reader, open, read};
pub use record::{Op, Record};
