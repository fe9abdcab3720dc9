//! Tokens of the node in memory. Keys are the token's number, over and over.

use flagstone::node::{
    NewToken, NodeErrorKind, RotateSpec, TokenInfo, TokenKind, TokenList, TokenSpec, TokenState,
    TokenText,
};

use crate::fake_state::{Answer, State, error};

const NOW_NS: u64 = 1_700_000_000_000_000_000;

/// The text of a token.
pub(crate) fn text(number: u32) -> TokenText {
    TokenText::new(number, &[number as u8; 32])
}

/// That of the owner of a new volume.
pub(crate) fn first_token(state: &mut State, volume: &str) -> TokenText {
    let spec = TokenSpec {
        kind: TokenKind::Owner,
        ends_in_s: None,
        label: String::new(),
    };
    state.tokens.remove(volume);
    add(state, volume, spec).token
}

fn add(state: &mut State, volume: &str, spec: TokenSpec) -> NewToken {
    let tokens = state.tokens.entry(volume.to_string()).or_default();
    let number = tokens.len() as u32 + 1;
    let info = TokenInfo {
        number,
        kind: spec.kind,
        label: spec.label,
        state: TokenState::Valid,
        created_ns: NOW_NS,
        ends_ns: spec.ends_in_s.map(|s| NOW_NS + s * 1_000_000_000),
        revoked_ns: None,
        open_count: 0,
    };
    tokens.push(info.clone());
    let token = text(number);
    NewToken { info, token }
}

impl State {
    fn token(&mut self, doing: &str, volume: &str, number: u32) -> Answer<&mut TokenInfo> {
        self.volume(doing, volume)?;
        let tokens = self.tokens.entry(volume.to_string()).or_default();
        let found = tokens.iter_mut().find(|token| token.number == number);
        found.ok_or_else(|| {
            let doing = format!("{doing} token {number} of volume '{volume}'");
            error(NodeErrorKind::NotFound, doing, "there is no such token")
        })
    }

    pub(crate) fn create_token(&mut self, volume: &str, spec: TokenSpec) -> Answer<NewToken> {
        self.volume("making a token of", volume)?;
        Ok(add(self, volume, spec))
    }

    pub(crate) fn list_tokens(&mut self, volume: &str) -> Answer<TokenList> {
        self.volume("listing the tokens of", volume)?;
        let items = self.tokens.get(volume).cloned().unwrap_or_default();
        Ok(TokenList { items })
    }

    pub(crate) fn revoke_token(&mut self, volume: &str, number: u32) -> Answer<TokenInfo> {
        let token = self.token("revoking", volume, number)?;
        token.state = TokenState::Revoked;
        token.revoked_ns = Some(NOW_NS);
        Ok(token.clone())
    }

    pub(crate) fn rotate_token(
        &mut self,
        volume: &str,
        number: u32,
        spec: RotateSpec,
    ) -> Answer<NewToken> {
        let old = self.token("rotating", volume, number)?;
        old.ends_ns = Some(NOW_NS + spec.old_ends_in_s * 1_000_000_000);
        if spec.old_ends_in_s == 0 {
            old.state = TokenState::Ended;
        }
        let spec = TokenSpec {
            kind: old.kind,
            ends_in_s: spec.ends_in_s,
            label: old.label.clone(),
        };
        Ok(add(self, volume, spec))
    }
}
