"""A linear layer and its activation, as in MLPs of encoders and of GPT-2.

`then` names the modules that follow, in order.
"""
# mypy: ignore-errors

from __future__ import annotations

from torch import nn

from fusedops.torch.conversion.hf.forms import Form


class BertIntermediate(Form, mixin="dense.ActivatedDense", then=()):
    def forward(self, hidden_states):
        hidden_states = self.dense(hidden_states)
        hidden_states = self.activation(hidden_states)
        return hidden_states


class PhiMLP(Form, mixin="dense.ActivatedDense", then=("last",)):
    def forward(self, hidden_states):
        hidden_states = self.dense(hidden_states)
        hidden_states = self.activation(hidden_states)
        hidden_states = self.last(hidden_states)
        return hidden_states


class ArceeMLP(Form, mixin="dense.ActivatedDense", then=("last",)):
    def forward(self, x):
        return self.last(self.activation(self.dense(x)))


class FalconMLP(Form, mixin="dense.ActivatedDense", then=("last",)):
    def forward(self, x):
        x = self.activation(self.dense(x))
        x = self.last(x)
        return x


class GPT2MLP(Form, mixin="dense.ActivatedDense", then=("projection", "last")):
    def forward(self, hidden_states):
        hidden_states = self.dense(hidden_states)
        hidden_states = self.activation(hidden_states)
        hidden_states = self.projection(hidden_states)
        hidden_states = self.last(hidden_states)
        return hidden_states


class HubertFeedForward(Form, mixin="dense.ActivatedDense", then=("dropout", "projection", "last")):
    def forward(self, hidden_states):
        hidden_states = self.dense(hidden_states)
        hidden_states = self.activation(hidden_states)
        hidden_states = self.dropout(hidden_states)
        hidden_states = self.projection(hidden_states)
        hidden_states = self.last(hidden_states)
        return hidden_states


class VitDetMlp(Form, mixin="dense.ActivatedDense", then=("dropout", "projection", "dropout")):
    def forward(self, x):
        x = self.dense(x)
        x = self.activation(x)
        x = self.dropout(x)
        x = self.projection(x)
        x = self.dropout(x)
        return x


class DetrMLP(Form, mixin="dense.DroppedDense"):
    def forward(self, hidden_states):
        hidden_states = self.activation(self.dense(hidden_states))
        hidden_states = nn.functional.dropout(hidden_states, p=self.activation_dropout, training=self.training)
        hidden_states = self.last(hidden_states)
        hidden_states = nn.functional.dropout(hidden_states, p=self.dropout, training=self.training)
        return hidden_states
