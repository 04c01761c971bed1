//! Whether a stripe agrees with its code, and which unit is wrong if not.

use weft_code::UnitSet;
use weft_rt::Buf;

use crate::gather::{Access, Gathered, gather};
use crate::owner::{Owner, Stripe};
use crate::{Units, Unreadable, value_in};

/// A stripe as read, with its recomputed parity compared.
#[derive(Debug)]
pub struct Checked {
    /// All data units; lost ones reconstructed.
    pub data: Units,
    /// The present parity units, as found.
    pub parity: Units,
    /// The correct contents of the units that disagree with the data.
    pub wrong: Units,
    /// Units with sectors that could be neither read nor rewritten. They are reconstructed here;
    /// their disks may return something else one day.
    pub unrepaired: UnitSet,
}

/// Reads all units of a stripe over a range of offsets, and recomputes their parity.
///
/// # Errors
/// If the data cannot be had.
pub async fn check<O: Owner>(
    owner: &O,
    stripe: Stripe<'_>,
    at: Access,
    len: usize,
) -> Result<Checked, Unreadable> {
    let code = stripe.code();
    let k = code.k();
    // If the first copy of a mirror is lost, the planner picks the next.
    let present = stripe.coding.units().difference(&stripe.lost);
    let wanted = stripe.coding.data_units().union(&present);
    let all: Units = wanted.iter().map(|unit| (unit, Buf::new(len))).collect();
    let Gathered { result, units: all, unrepaired } = gather(owner, stripe, at, &[], all).await;
    result?;
    let (data, parity): (Units, Units) = all.into_iter().partition(|(unit, _)| *unit < k);
    let sources: Vec<&[u8]> = data.iter().map(|(_, buf)| &**buf).collect();
    let rows: Vec<&[u8]> =
        parity.iter().map(|(unit, _)| code.row(stripe.id.number, unit - k)).collect();
    let mut fresh: Vec<Buf> = parity.iter().map(|_| Buf::new(len)).collect();
    let mut outputs: Vec<&mut [u8]> = fresh.iter_mut().map(|buf| &mut **buf).collect();
    weft_gf::encode(&rows, &sources, &mut outputs);
    let wrong = parity
        .iter()
        .zip(fresh)
        .filter(|((_, found), fresh)| **found != **fresh)
        .map(|((unit, _), fresh)| (*unit, fresh))
        .collect();
    Ok(Checked { data, parity, wrong, unrepaired })
}

/// The unit whose correction makes the whole stripe agree, with its correct contents, if there is
/// only one.
#[must_use]
pub fn wrong_unit(stripe: Stripe<'_>, checked: &Checked) -> Option<(usize, Buf)> {
    let units = stripe.coding.units();
    let mut fitting =
        units.iter().filter_map(|unit| Some((unit, correction(stripe, checked, unit)?)));
    let found = fitting.next()?;
    fitting.next().is_none().then_some(found)
}

/// What `unit` must hold if all other units are right; `None` if they disagree, or do not determine
/// it.
fn correction(stripe: Stripe<'_>, checked: &Checked, unit: usize) -> Option<Buf> {
    let len = checked.data.first()?.1.len();
    let value = |of: usize| value_in(&checked.data, of).or_else(|| value_in(&checked.parity, of));
    let (number, one) = (stripe.id.number, UnitSet::one(unit));
    let plan = stripe.coding.plan(number, one, one, UnitSet::new()).ok()?;
    let (coefs, sources): (Vec<u8>, Vec<&[u8]>) = plan
        .output(unit)?
        .iter()
        .map(|(source, coef)| Some((*coef, value(*source)?)))
        .collect::<Option<Vec<_>>>()?
        .into_iter()
        .unzip();
    let mut corrected = Buf::new(len);
    weft_gf::encode(&[&coefs], &sources, &mut [&mut corrected]);
    let code = stripe.code();
    let with = |of: usize| if of == unit { Some(&*corrected) } else { value(of) };
    for row in 0..code.p() {
        let sources: Vec<&[u8]> = (0..code.k()).map(with).collect::<Option<_>>()?;
        let mut parity = Buf::new(len);
        weft_gf::encode(&[code.row(number, row)], &sources, &mut [&mut parity]);
        if *parity != *with(code.k() + row)? {
            return None;
        }
    }
    Some(corrected)
}
