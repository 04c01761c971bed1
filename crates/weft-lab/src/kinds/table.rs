//! The runs of an experiment that combines places – arrays, loads – with policies, and its panels.

use crate::figure::{Panel, Point};

/// For each place the runs of each policy, which are repeated.
pub(super) struct Table<T> {
    places: Vec<String>,
    policies: Vec<String>,
    /// By place, policy and repeat.
    rows: Vec<Vec<Vec<T>>>,
}

impl<T> Table<T> {
    /// As many tables as `runs` fill. These are ordered by table, place and policy.
    pub(super) fn all<'a>(
        places: impl IntoIterator<Item = &'a String>,
        policies: impl IntoIterator<Item = String>,
        runs: impl IntoIterator<Item = Vec<T>>,
    ) -> Vec<Self> {
        let places: Vec<String> = places.into_iter().cloned().collect();
        let policies: Vec<String> = policies.into_iter().collect();
        let mut runs = runs.into_iter().peekable();
        let mut tables = Vec::new();
        while runs.peek().is_some() {
            let mut row = || runs.by_ref().take(policies.len()).collect();
            let rows = places.iter().map(|_| row()).collect();
            tables.push(Self { places: places.clone(), policies: policies.clone(), rows });
        }
        tables
    }

    /// Its rows, each with its place.
    pub(super) fn rows(&self) -> impl Iterator<Item = (&String, &Vec<Vec<T>>)> {
        self.places.iter().zip(&self.rows)
    }

    /// Without the places that `keep` does not name.
    pub(super) fn only(&self, keep: impl Fn(&str) -> bool) -> Table<&T> {
        let (places, rows) = self
            .rows()
            .filter(|(place, _)| keep(place))
            .map(|(place, row)| {
                (place.clone(), row.iter().map(|runs| runs.iter().collect()).collect())
            })
            .unzip();
        Table { places, policies: self.policies.clone(), rows }
    }

    /// A point for each place: a number of the runs of a policy.
    pub(super) fn points(&self, policy: usize, of: impl Fn(&T) -> f64) -> Vec<Point> {
        let point = |(place, row): (&String, &Vec<Vec<T>>)| {
            Point::spread(place, &row[policy].iter().map(&of).collect::<Vec<_>>())
        };
        self.rows().map(point).collect()
    }

    /// A series for each policy.
    pub(super) fn panel(&self, panel: Panel, of: impl Fn(&T) -> f64) -> Panel {
        let all = self.policies.iter().enumerate();
        all.fold(panel, |panel, (policy, name)| panel.with(name, self.points(policy, &of)))
    }

    /// A point for each place: a policy compared with another, run by run.
    pub(super) fn compared(
        &self,
        policy: usize,
        base: usize,
        by: impl Fn(&T, &T) -> f64,
    ) -> Vec<Point> {
        let point = |(place, row): (&String, &Vec<Vec<T>>)| {
            let pairs = row[policy].iter().zip(&row[base]);
            Point::spread(place, &pairs.map(|(run, base)| by(run, base)).collect::<Vec<_>>())
        };
        self.rows().map(point).collect()
    }
}

/// A point for each of some policies: where it gains most, among all places of all tables.
pub(super) fn greatest<T>(
    tables: &[Table<T>],
    pairs: impl IntoIterator<Item = (usize, usize)>,
    by: impl Fn(&T, &T) -> f64,
) -> Vec<Point> {
    let most = |(policy, base)| {
        let points = tables.iter().flat_map(|table| table.compared(policy, base, &by));
        let most = points.max_by(|a, b| a.ours.total_cmp(&b.ours))?;
        Some(Point { x: tables[0].policies[policy].clone(), ..most })
    };
    pairs.into_iter().filter_map(most).collect()
}
