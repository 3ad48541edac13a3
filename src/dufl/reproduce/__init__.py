"""The paper's figures and table as experiments, each with its claims and whether they hold here."""
