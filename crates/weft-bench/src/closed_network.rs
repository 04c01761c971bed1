//! A fixed number of customers who each want one thing after the other of shared resources: how
//! many things are done, and which resource is exhausted first.
//!
//! Each customer thinks, then visits every resource once, in a queue, and starts again. This is a
//! closed queueing network, and *mean value analysis* computes it exactly for exponential times
//! (Reiser and Lavenberg, JACM 1980): who arrives at a resource finds there what the network with
//! one customer less has there in the mean.

/// What the customers reach together.
#[derive(Debug, Clone, PartialEq)]
pub struct Throughput {
    /// Things that are done in a second.
    pub rate: f64,
    /// The share of the time in which each resource works.
    pub busy: Vec<f64>,
}

/// What `customers` reach who think for `think_s` and then want `demands_s` of each resource.
///
/// ```
/// let reached = weft_bench::closed_network(3, 0.009, &[0.001]);
/// // Three customers who hardly meet: nearly three times what one has.
/// assert!(reached.rate > 290.0 && reached.rate < 300.0);
/// // Many of them get what the resource gives.
/// let reached = weft_bench::closed_network(100, 0.009, &[0.001]);
/// assert!(reached.rate > 999.0 && reached.busy[0] > 0.999);
/// ```
#[must_use]
pub fn closed_network(customers: u32, think_s: f64, demands_s: &[f64]) -> Throughput {
    let (mut waiting, mut rate) = (vec![0.0; demands_s.len()], 0.0);
    for present in 1..=customers {
        let stays =
            demands_s.iter().zip(&waiting).map(|(demand, waiting)| demand * (1.0 + waiting));
        let stays: Vec<f64> = stays.collect();
        rate = f64::from(present) / (think_s + stays.iter().sum::<f64>());
        for (waiting, stay) in waiting.iter_mut().zip(stays) {
            *waiting = rate * stay;
        }
    }
    Throughput { rate, busy: demands_s.iter().map(|demand| rate * demand).collect() }
}
