//! Where the database's deadline index begins.

/// No place in the database's deadline index comes before this one, but of records that changes in
/// memory are ahead of it with. Looking for what is due starts here, or it would wade through all
/// that was purged and is not compacted away yet.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct FirstPlace(Vec<u8>);

impl FirstPlace {
    /// Before all places.
    pub(crate) fn unknown() -> Self {
        Self(Vec::new())
    }

    /// The first place that was found.
    pub(crate) fn found(place: &[u8]) -> Self {
        Self(place.to_vec())
    }

    /// No place was found. Comes after all but those of the last deadline that there is.
    pub(crate) fn none() -> Self {
        Self(u64::MAX.to_be_bytes().to_vec())
    }

    /// Where to look from.
    pub(crate) fn place(&self) -> &[u8] {
        &self.0
    }

    /// The database was given places, none with a deadline before `first_ms`.
    pub(crate) fn given(&mut self, first_ms: u64) {
        let first = first_ms.to_be_bytes().to_vec();
        if first < self.0 {
            self.0 = first;
        }
    }

    /// Somebody waded from one place to another and found nothing between them. That counts unless
    /// the database was given earlier ones meanwhile, which he may not have seen.
    pub(crate) fn waded(&mut self, from: &Self, to: Self) {
        if self == from {
            *self = to;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_given_while_somebody_wades_is_not_lost() {
        let mut first = FirstPlace::unknown();
        first.waded(&FirstPlace::unknown(), FirstPlace::none());
        let seen = first.clone();
        first.given(7);
        first.waded(&seen, FirstPlace::found(&9_u64.to_be_bytes()));
        assert_eq!(first.place(), 7_u64.to_be_bytes());
        first.waded(&first.clone(), FirstPlace::found(&9_u64.to_be_bytes()));
        first.given(u64::MAX);
        assert_eq!(first.place(), 9_u64.to_be_bytes());
    }
}
