//! The names of an enum's values, as written in commands, reports and JSON: once for each enum.

macro_rules! named {
    ($type:ident, $($variant:ident = $name:literal),+) => {
        impl $type {
            /// All values.
            pub const ALL: &[Self] = &[$(Self::$variant),+];

            /// The value's name.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name),+
                }
            }
        }

        impl std::fmt::Display for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(self.name())
            }
        }
    };
}

pub(crate) use named;

#[cfg(test)]
mod tests {
    use crate::{Consistency, JobKind, MemberState, Piggyback};
    use crate::{RebuildOrder, RebuildPace};

    #[test]
    fn names_are_those_of_the_json() {
        fn check<T: serde::Serialize + Copy>(all: &[T], name: impl Fn(T) -> &'static str) {
            for value in all {
                let json = serde_json::to_string(value).expect("a plain enum");
                assert_eq!(json, format!("\"{}\"", name(*value)));
            }
        }
        check(RebuildOrder::ALL, RebuildOrder::name);
        check(RebuildPace::ALL, RebuildPace::name);
        check(Piggyback::ALL, Piggyback::name);
        check(Consistency::ALL, Consistency::name);
        check(MemberState::ALL, MemberState::name);
        check(JobKind::ALL, JobKind::name);
    }
}
