//! ISA-L's erasure-code and RAID routines, loaded when asked for: a second opinion and a yardstick,
//! never a part of weft.

#![allow(dead_code, reason = "the tests and the benchmark use their parts")]

use std::ffi::{CStr, c_int, c_uchar, c_void};

type GenFn = unsafe extern "C" fn(c_int, c_int, *mut *mut c_void) -> c_int;
type TablesFn = unsafe extern "C" fn(c_int, c_int, *const c_uchar, *mut c_uchar);
type EncodeFn = unsafe extern "C" fn(
    c_int,
    c_int,
    c_int,
    *const c_uchar,
    *const *const c_uchar,
    *const *mut c_uchar,
);
type MulFn = unsafe extern "C" fn(c_int, *const c_uchar, *const c_void, *mut c_void) -> c_int;
type MadFn =
    unsafe extern "C" fn(c_int, c_int, c_int, *const c_uchar, *const c_uchar, *mut c_uchar);

/// Entry points of `libisal.so.2`.
pub struct Isal {
    xor_gen: GenFn,
    pq_gen: GenFn,
    ec_init_tables: TablesFn,
    ec_encode_data: EncodeFn,
    gf_vect_mul: MulFn,
    gf_vect_mad: MadFn,
}

/// Coefficients in the form ISA-L's routines take: 32 bytes each.
pub struct Tables {
    bytes: Vec<u8>,
    rows: usize,
    sources: usize,
}

fn int(n: usize) -> c_int {
    c_int::try_from(n).expect("fits a C int")
}

impl Isal {
    /// Loads the library, or says why not.
    pub fn load() -> Result<Isal, String> {
        // SAFETY: libisal runs no code of consequence when loaded; it is never unloaded.
        let library = unsafe { libc::dlopen(c"libisal.so.2".as_ptr(), libc::RTLD_NOW) };
        if library.is_null() {
            // SAFETY: dlopen has just failed, so there is a message.
            let why = unsafe { CStr::from_ptr(libc::dlerror()) };
            return Err(why.to_string_lossy().into_owned());
        }
        let symbol = |name: &CStr| {
            // SAFETY: the library is loaded; the name ends in a zero.
            let address = unsafe { libc::dlsym(library, name.as_ptr()) };
            if address.is_null() { Err(format!("no {name:?} in libisal")) } else { Ok(address) }
        };
        // SAFETY: the types are those of isa-l/raid.h and isa-l/erasure_code.h.
        unsafe {
            Ok(Isal {
                xor_gen: std::mem::transmute::<*mut c_void, GenFn>(symbol(c"xor_gen")?),
                pq_gen: std::mem::transmute::<*mut c_void, GenFn>(symbol(c"pq_gen")?),
                ec_init_tables: std::mem::transmute::<*mut c_void, TablesFn>(symbol(
                    c"ec_init_tables",
                )?),
                ec_encode_data: std::mem::transmute::<*mut c_void, EncodeFn>(symbol(
                    c"ec_encode_data",
                )?),
                gf_vect_mul: std::mem::transmute::<*mut c_void, MulFn>(symbol(c"gf_vect_mul")?),
                gf_vect_mad: std::mem::transmute::<*mut c_void, MadFn>(symbol(c"gf_vect_mad")?),
            })
        }
    }

    /// `dsts[0] = Σ srcs`. Units are aligned to 32 bytes.
    pub fn xor(&self, srcs: &[&[u8]], dst: &mut [u8]) {
        let mut list = pointers(srcs, &mut [dst]);
        // SAFETY: `pointers` has checked lengths and alignment; the last is the output.
        let failed = unsafe { (self.xor_gen)(int(list.len()), len(srcs), list.as_mut_ptr()) };
        assert_eq!(failed, 0);
    }

    /// P and Q. Units are aligned to 32 bytes and multiples of 32 long.
    pub fn pq(&self, srcs: &[&[u8]], p: &mut [u8], q: &mut [u8]) {
        let mut list = pointers(srcs, &mut [p, q]);
        // SAFETY: `pointers` has checked lengths and alignment; the last two are the outputs.
        let failed = unsafe { (self.pq_gen)(int(list.len()), len(srcs), list.as_mut_ptr()) };
        assert_eq!(failed, 0);
    }

    pub fn tables(&self, rows: &[&[u8]]) -> Tables {
        let (r, k) = (rows.len(), rows[0].len());
        let matrix = rows.concat();
        assert_eq!(matrix.len(), r * k);
        let mut bytes = vec![0; 32 * r * k];
        // SAFETY: r·k coefficients in, 32 bytes for each out.
        unsafe { (self.ec_init_tables)(int(k), int(r), matrix.as_ptr(), bytes.as_mut_ptr()) };
        Tables { bytes, rows: r, sources: k }
    }

    /// The general product; any length and alignment.
    pub fn encode(&self, tables: &Tables, srcs: &[&[u8]], dsts: &mut [&mut [u8]]) {
        assert!(srcs.len() == tables.sources && dsts.len() == tables.rows);
        assert!(dsts.iter().all(|dst| dst.len() == srcs[0].len()));
        let from: Vec<_> = srcs.iter().map(|src| src.as_ptr()).collect();
        let to: Vec<_> = dsts.iter_mut().map(|dst| dst.as_mut_ptr()).collect();
        let (k, r) = (int(srcs.len()), int(dsts.len()));
        // SAFETY: as many tables, sources and outputs as it is told, all of one length.
        unsafe {
            (self.ec_encode_data)(
                len(srcs),
                k,
                r,
                tables.bytes.as_ptr(),
                from.as_ptr(),
                to.as_ptr(),
            );
        }
    }

    /// `dst = c·src` by a 1×1 table; the length is a multiple of 32.
    pub fn mul(&self, table: &Tables, src: &[u8], dst: &mut [u8]) {
        assert!(src.len() == dst.len() && src.len().is_multiple_of(32) && table.bytes.len() == 32);
        let (from, to) = (src.as_ptr().cast(), dst.as_mut_ptr().cast());
        // SAFETY: one table, two units of one length.
        let failed = unsafe { (self.gf_vect_mul)(int(src.len()), table.bytes.as_ptr(), from, to) };
        assert_eq!(failed, 0);
    }

    /// `dst += c·src` by a 1×1 table; the length is at least 64.
    pub fn mul_acc(&self, table: &Tables, src: &[u8], dst: &mut [u8]) {
        assert!(src.len() == dst.len() && src.len() >= 64 && table.bytes.len() == 32);
        let (from, to) = (src.as_ptr(), dst.as_mut_ptr());
        // SAFETY: one table, two units of one length.
        unsafe { (self.gf_vect_mad)(int(src.len()), 1, 0, table.bytes.as_ptr(), from, to) };
    }
}

fn len(srcs: &[&[u8]]) -> c_int {
    int(srcs[0].len())
}

fn pointers(srcs: &[&[u8]], dsts: &mut [&mut [u8]]) -> Vec<*mut c_void> {
    let len = srcs[0].len();
    assert!(len.is_multiple_of(32), "a multiple of 32 bytes");
    let from = srcs.iter().map(|src| (src.as_ptr(), src.len()));
    let to = dsts.iter_mut().map(|dst| (dst.as_ptr(), dst.len()));
    from.chain(to)
        .map(|(p, n)| {
            assert!(n == len && p.addr() % 32 == 0);
            p.cast_mut().cast()
        })
        .collect()
}
