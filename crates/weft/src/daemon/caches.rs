//! The arrays' caches: bounds, changes, reports.

use weft_array::CacheChoice;
use weft_cache::{CachedVolume, Choice, DomainCounts, Usage};
use weft_cli::failure::Failure;
use weft_cli::size;

use crate::control::protocol::{CacheCounts, CacheReport};
use crate::daemon::Daemon;
use crate::daemon::log;
use crate::daemon::served::Served;
use crate::machine;

/// What an array's cache does; none if it is off.
pub fn report(cache: &CachedVolume) -> Option<CacheReport> {
    let Usage { policy, bytes_max, bytes, domains } = cache.usage()?;
    let total = domains.iter().fold(DomainCounts::default(), |all, one| all.and(one));
    Some(CacheReport {
        policy: policy.to_string(),
        max_bytes: bytes_max,
        used_bytes: bytes,
        hit_ratio: total.hit_ratio(),
        rgr: total.rgr(),
        total: counts(&total),
        slots: domains.iter().map(counts).collect(),
    })
}

fn counts(of: &DomainCounts) -> CacheCounts {
    CacheCounts {
        requested_blocks: of.requests,
        hit_blocks: of.hits,
        disk_blocks: of.disk_blocks,
        spared_blocks: of.spared_blocks,
        saved_blocks: of.saved_blocks,
    }
}

/// Refuses caches of more than the machine's memory: it would swap, or kill the daemon.
pub fn check_bytes(bytes: u64) -> Result<(), Failure> {
    let memory = machine::memory_bytes();
    if bytes <= memory {
        return Ok(());
    }
    Err(Failure::new(format!(
        "the caches would take {}, but this machine has {} of memory",
        size::show(bytes),
        size::show(memory)
    ))
    .hint("give a smaller size; nothing was changed"))
}

/// Switches a cache on.
pub fn switch_on(served: &Served, policy: Choice, bytes: u64) -> Result<(), Failure> {
    served.cache.switch_on(policy, bytes).map_err(|error| {
        Failure::new(format!("a cache of {} is not possible: {error}", size::show(bytes)))
            .hint("the cache is off now; the array works without it")
    })
}

impl Daemon {
    /// Switches the cache of an array on that starts, if `weft cache` chose one for it, or else if
    /// the daemon was told so.
    pub fn begin_cache(&self, name: &str, served: &Served) {
        let chosen = served.array.cache_choice();
        // A policy in words of another version gives way to the usual one.
        let policy = |name: String| name.parse().unwrap_or(Choice::DEFAULT);
        let chosen = chosen.map(|cache| (Some(cache.max_bytes), policy(cache.policy)));
        let (bytes, policy) = chosen.unwrap_or((self.caches.size, self.caches.policy));
        let Some(bytes) = bytes.filter(|bytes| *bytes > 0) else { return };
        let done = check_bytes(bytes.saturating_add(self.other_caches(served)))
            .and_then(|()| switch_on(served, policy, bytes));
        if let Err(failure) = done {
            log::about(name, &format!("ALERT: no cache: {failure}"));
        }
    }

    /// Bytes of the other arrays' caches.
    fn other_caches(&self, served: &Served) -> u64 {
        let arrays = self.arrays.borrow();
        let others = arrays.values().filter(|other| !std::ptr::eq(&raw const ***other, served));
        others.filter_map(|other| other.cache.usage()).map(|usage| usage.bytes_max).sum()
    }

    /// Shows or changes the cache of an array, and stores the change in the array.
    pub async fn cache(
        &self,
        array: &str,
        max_bytes: Option<u64>,
        policy: Option<&str>,
    ) -> Result<Option<CacheReport>, Failure> {
        let served = self.find(array)?;
        let now = served.cache.usage();
        let wanted = policy.map(str::parse::<Choice>).transpose();
        let wanted = wanted.map_err(|error| Failure::new(error.to_string()))?;
        let as_before = || now.as_ref().filter(|_| wanted.is_some()).map(|now| now.bytes_max);
        match max_bytes.or_else(as_before) {
            None if wanted.is_some() => {
                return Err(Failure::new("the cache is off")
                    .hint(format!("`weft cache {array} --size 1GiB` switches it on")));
            }
            None => return Ok(report(&served.cache)),
            Some(0) => served.cache.switch_off(),
            Some(bytes) => {
                check_bytes(bytes.saturating_add(self.other_caches(&served)))?;
                let before = now.as_ref().map_or(Choice::DEFAULT, |now| now.policy);
                switch_on(&served, wanted.unwrap_or(before), bytes)?;
            }
        }
        let policy = wanted.or_else(|| now.map(|now| now.policy)).unwrap_or(Choice::DEFAULT);
        let bytes = served.cache.usage().map_or(0, |usage| usage.bytes_max);
        served
            .array
            .store_cache_choice(Some(CacheChoice { max_bytes: bytes, policy: policy.to_string() }))
            .await;
        Ok(report(&served.cache))
    }
}
